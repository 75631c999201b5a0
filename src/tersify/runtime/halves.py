"""Which layers of a plan may run on 16-bit floats."""

from __future__ import annotations

import os
from dataclasses import replace
from types import ModuleType

import torch

from tersify.runtime.engine import ISA_VARIABLE, chosen_isa
from tersify.runtime.plan import Node, Plan

LARGEST = torch.finfo(torch.float16).max


def serves_halves(module: ModuleType) -> bool:
    """Whether the kernels add 16-bit floats: by instructions of this CPU, or emulated where TERSIFY_ISA names a set."""
    return bool(module.adds_fp16(chosen_isa(module))) or bool(os.environ.get(ISA_VARIABLE))


def with_halves(plan: Plan) -> Plan:
    """The plan with convolutions marked "fp16" and their weights rounded so. Every other node stays as it is."""
    return replace(plan, nodes=tuple(_marked(node) if can_be_half(node) else node for node in plan.nodes))


def can_be_half(node: Node) -> bool:
    """A convolution whose weights lie in the range of 16-bit floats."""
    if node.kind != "conv" or node.weight is None or node.in_torch:
        return False
    return node.weight.values.numel() == 0 or float(node.weight.values.abs().max()) <= LARGEST


def _marked(node: Node) -> Node:
    assert node.weight is not None
    return replace(node, weight=node.weight.in_halves(), options={**node.options, "fp16": True})
