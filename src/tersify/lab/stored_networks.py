"""Networks from files: a checkpoint's weights into a module, and the network a .terse
file names.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tersify import codec
from tersify.codec import DEFAULT_MAX_DECODED_BYTES
from tersify.lab.checkpoints import named_as, read_state
from tersify.lab.networks import networks
from tersify.lab.targets import resolve_target
from tersify.shrinking import fit_
from tersify.tensor.inputs import METADATA as QUANTIZED_INPUTS
from tersify.tensor.model import GRAPH, check_names


def load_weights(
    model: nn.Module, path: Path, *, max_decoded_bytes: int = DEFAULT_MAX_DECODED_BYTES
) -> nn.Module:
    """Fill `model` from a .terse, .safetensors or torch checkpoint; nothing in the file
    is executed.
    """
    if not path.is_file():
        raise ValueError(
            f"no weights at {path}; --weights names a .terse, .safetensors or torch file"
        )
    state = named_as(model.state_dict(), read_state(path, max_decoded_bytes))
    try:
        # Old checkpoints have no batch counters; torch fills them in. A network may say
        # what else stays as it is.
        may_lack = ("num_batches_tracked", *_may_lack(model))
        check_names(
            {name: tuple(t.shape) for name, t in state.items()},
            model,
            may_lack=may_lack,
        )
    except ValueError as problem:
        raise ValueError(
            f"{path} does not fit: {problem}; check the target's options"
        ) from None
    for name, tensor in state.items():
        # Also of 8-bit floats, for which torch has no isnan.
        if tensor.is_floating_point() and bool(tensor.float().isnan().any()):
            raise ValueError(
                f"{path} holds NaN in {name!r}, from which nothing can be trained; use other weights"
            )
    model.load_state_dict(state, strict=False)
    return model


def _may_lack(model: nn.Module) -> tuple[str, ...]:
    own = getattr(model, "may_lack", ())
    return own if isinstance(own, tuple) else ()


def load_network(
    path: Path,
    *,
    target: str | None = None,
    options: Mapping[str, Any] | None = None,
    trust: bool | None = None,
    max_decoded_bytes: int = DEFAULT_MAX_DECODED_BYTES,
    remedy: str = "say what it is with --target",
) -> nn.Module:
    """The network of a .terse file, in eval mode.

    Without `target` it is what the file says: a reference network, or the graph of
    operations that the file holds. Any other network that it names is built with
    `trust` alone: a file from elsewhere must not choose which code runs here. `remedy`
    is what the caller can do about others, beside `trust` where that is not None.
    """
    if target is None and options:
        raise ValueError(
            f"--option {', '.join(options)} belongs to --target, and none is given: the network and its options "
            f"would come from {path}; give --target as well, or leave --option out"
        )
    file = codec.open(path, max_decoded_bytes=max_decoded_bytes)
    if target is None:
        named, options = _stored_target(file, path)
        # A reference network is code of this package, so any file may name it; whether
        # the file really holds one is checked against a skeleton without memory.
        if named in networks():
            _check_claim(file, path, named, options)
        elif isinstance(named, str) and trust:
            pass
        elif GRAPH in file.metadata:
            return _of_graph(file, path, max_decoded_bytes)
        elif isinstance(named, str):
            trusting = (
                ""
                if trust is None
                else ", or let a file that you know choose it, with --trust (trust=True)"
            )
            raise ValueError(
                f"{path} names {named!r}, code that a file must not choose; {remedy}{trusting}"
            )
        else:
            raise ValueError(f"{path} does not say which network it is; {remedy}")
        target = named
    network = resolve_target(target, **(options or {}))
    # A shrunk file has smaller layers than its network is born with.
    if file.metadata.get("shrunk"):
        fit_(network, file.shapes())
    try:
        check_names(file.shapes(), network)
    except ValueError as problem:
        # Only for the hint: what a file says of itself may be of any type.
        own = file.metadata.get("target")
        made = own.get("options") if isinstance(own, dict) else None
        hint = f"; the file was made with the options {made}" if made else ""
        raise ValueError(
            f"{path} is not the network {target}: {problem}{hint}; check --target and --option"
        ) from None
    return codec.load(path, into=network, max_decoded_bytes=max_decoded_bytes).eval()


def _stored_target(
    file: codec.TerseFile, path: Path
) -> tuple[str | None, dict[str, Any]]:
    """The target and its options, as the file has them."""
    stored = file.metadata.get("target")
    stored = stored if isinstance(stored, dict) else {}
    name, options = stored.get("name"), stored.get("options") or {}
    if not isinstance(options, dict) or not all(
        isinstance(key, str) for key in options
    ):
        raise ValueError(
            f"{path} gives its network the options {options!r}, which are no table; use --target"
        )
    return (name if isinstance(name, str) else None), options


def _check_claim(
    file: codec.TerseFile, path: Path, name: str, options: Mapping[str, Any]
) -> None:
    """A file is believed only where a network of that name has just the file's tensors."""
    try:
        # Without memory, so that a file cannot ask for more of it than its own tensors
        # take.
        with torch.device("meta"):
            skeleton = resolve_target(name, **options)
            if file.metadata.get("shrunk"):
                fit_(skeleton, file.shapes())
        check_names(file.shapes(), skeleton)
    except (ValueError, TypeError, RuntimeError, OverflowError) as problem:
        why = str(problem).partition("\n")[0]
        raise ValueError(
            f"{path} is not the network {name} it claims to be: {why}; use --target"
        ) from None


def _of_graph(file: codec.TerseFile, path: Path, max_decoded_bytes: int) -> nn.Module:
    from tersify.graph import network_of

    if file.metadata.get(QUANTIZED_INPUTS):
        raise ValueError(
            f"{path} has quantized activations, which its graph does not; use --target"
        )
    try:
        network = network_of(
            file.metadata[GRAPH], file.shapes(), max_bytes=max_decoded_bytes
        )
    except ValueError as problem:
        raise codec.TerseFileError(f"{path}: {problem}") from None
    return codec.load(path, into=network, max_decoded_bytes=max_decoded_bytes).eval()
