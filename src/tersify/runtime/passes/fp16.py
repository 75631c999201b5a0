"""Which layers of a plan may run on 16-bit floats."""

from __future__ import annotations

import os
from dataclasses import replace
from types import ModuleType

import torch

from tersify.runtime.extension import ISA_VARIABLE
from tersify.runtime.ops import Conv, ConvKernel
from tersify.runtime.plan import Node, Plan

LARGEST = torch.finfo(torch.float16).max


def serves_fp16(module: ModuleType, isa: str) -> bool:
    """Whether the kernels add 16-bit floats: by instructions of this CPU, or emulated
    where TERSIFY_ISA names a set.
    """
    return bool(module.adds_fp16(isa)) or bool(os.environ.get(ISA_VARIABLE))


def with_fp16(plan: Plan) -> Plan:
    """The plan with convolutions on fp16 activations and their weights rounded so. All
    else stays as it is.
    """
    return plan.with_each(_marked)


def _marked(node: Node) -> Node:
    op = node.op
    if (
        not isinstance(op, Conv)
        or op.in_torch
        or op.in_levels
        # A weight beyond 65504 would become infinite in fp16.
        or float(op.weight.factors.abs().max()) > LARGEST
    ):
        return node
    return replace(
        node, op=replace(op, weight=op.weight.in_fp16(), kernel=ConvKernel.LISTS_F16)
    )
