"""`save`: a packed model in a file, with the network lowered for machines without
Python where that is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from tersify import codec
from tersify.codec.packing import pack, packed_losslessly
from tersify.tensor import CompressedTensor

if TYPE_CHECKING:
    from tersify.runtime.portable import Program

Numbers = float | Sequence[float]
ROUNDING = frozenset({"quantize", "conv_i8", "conv_codes", "linear_i8"})


def save(
    model: nn.Module | Mapping[str, CompressedTensor | Tensor],
    path: str | os.PathLike[str],
    *,
    floats: Literal["as-is", "fp16"] = "as-is",
    network: nn.Module | None = None,
    example: Tensor | Sequence[Tensor] | None = None,
    other: Tensor | Sequence[Tensor] | None = None,
    plan: Literal["fp32", "int8"] | None = None,
    calibration: Tensor | Iterable[Any] | None = None,
    image: tuple[Numbers, Numbers] | None = None,
    labels: Sequence[str] = (),
) -> int:
    """Write a packed model, or any mapping `name → CompressedTensor | Tensor`; returns
    the file's bytes. A network with an example of its input gets a plan, too.

    Lossless by default, and each dense tensor is stored in the smallest form that is
    exact, as `pack` finds it.

    Args:
        model: what `session.pack()`, `compress_` or `pack` gave, or a state dict; or, with an example, the network
            itself, whose weights are packed.
        path: the file to write; it appears when all of it is written.
        floats: "as-is", or "fp16" to store 32-bit floats (codebooks, scales, values, dense tensors) in half
            precision; they are given back as 32-bit floats with the rounded values.
        network: a plain network of these weights, where `model` is none. With an example, its graph of operations goes
            into the file, and `load` needs no `into`.
        example: the network's input, or one for each argument.
        other: a second example, of another length: the plan then runs any length, not the example's alone. Where the
            network reads a table of places, the longer of the two is the longest that it runs.
        plan: "fp32" or "int8" activations: the network is lowered, too, so that libtersify and `tersify-run` run the
            file without Python. Every operation must have a kernel. Where `model` is the network, "fp32" is understood.
        calibration: batches of inputs, from which the activations of an int8 plan get their ranges.
        image: (mean, std), a number or one for each channel: the plan then takes images of bytes, which go in as
            (byte / 255 − mean) / std.
        labels: the names of the classes, one for each output, which the plan keeps.
    """
    own = False
    if isinstance(model, nn.Module) and example is not None:
        if network is not None:
            raise ValueError("the first argument is the network; leave network= out")
        own, network, plan = True, model, plan or "fp32"
    if example is not None and network is None:
        raise ValueError(
            "an example is for the network of these weights; give network=, or the network as the first argument"
        )
    if plan is None:
        _refuse_facts(image, labels, calibration, other)
        return codec.save(model, path, floats=floats, network=network, example=example)  # type: ignore[arg-type]
    # Lowering follows the network's operations on this input.
    if network is None or example is None:
        raise ValueError(
            "a plan is made of the network and an example of its input; give network= and example="
        )
    if floats != "as-is":
        raise ValueError(
            f"a plan needs the weights as they are, got floats={floats!r}; leave it out"
        )
    from tersify.runtime.portable import described, lowered

    packed = pack(network) if own else packed_losslessly(model)  # type: ignore[arg-type]
    check_same_weights(network, packed)
    program = called_by_its_activations(
        lowered(
            network,
            example,
            packed,
            precision=plan,
            calibration=calibration,
            other=other,
        )
    )
    section = described(program, image=image, labels=labels).to_bytes()
    written: dict[str, Any] = {"network": network, "example": example}
    if own and not _has_graph(network, example):
        written = {}  # a plan needs none, and nobody asked for one
    return codec.save(packed, path, **written, plan_section=section)


def _refuse_facts(
    image: Any, labels: Sequence[str], calibration: Any, other: Any
) -> None:
    if calibration is not None:
        raise ValueError(
            "calibration is for the ranges of an int8 plan; add plan='int8', or leave it out"
        )
    if image is not None or labels or other is not None:
        raise ValueError(
            "image=, labels= and other= are for the plan, and none is asked for; add plan='fp32'"
        )


def _has_graph(network: nn.Module, example: Any) -> bool:
    from tersify.graph import recorded

    try:
        recorded(network, example)
    except ValueError:
        return False
    return True


def called_by_its_activations(program: Program) -> Program:
    """An int8 plan that rounds nothing, since no layer gains by it, is one of fp32."""
    rounds = any(call[0] in ROUNDING for call in program.calls)
    return program if rounds else replace(program, precision="fp32")


def check_same_weights(
    network: nn.Module, packed: Mapping[str, CompressedTensor | Tensor]
) -> None:
    """The plan holds norms and biases of the network, and weights of the file: they
    must be one network.
    """
    for name, own in network.state_dict().items():
        stored = packed.get(name)
        if stored is None:
            continue  # an alias, or a name that `save` refuses
        # Compared in full: a plan of other weights would give silent wrong outputs.
        dense = stored.to_dense() if isinstance(stored, CompressedTensor) else stored
        if dense.shape != own.shape or not torch.equal(
            dense.to(own.dtype).cpu(), own.cpu()
        ):
            raise ValueError(
                f"{name!r} of the network is not what is saved; give the network with the packed weights"
            )
