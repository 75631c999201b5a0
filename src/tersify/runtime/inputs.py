"""What a compiled network may be shown: examples, inputs and calibration batches,
checked before anything runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tersify.runtime.capture.refusal import is_ours
from tersify.runtime.nested import is_plain, leaves
from tersify.runtime.transforms import refuse_indirect

Arguments = tuple[tuple[Any, ...], dict[str, Any]]  # positional and by keyword


def example_arguments(example: Any, device: str = "cpu") -> Arguments:
    """An example is a tensor, a tuple of positional inputs, or a dict of inputs by
    keyword.
    """
    kwargs = dict(example) if isinstance(example, Mapping) else {}
    args: tuple[Any, ...] = (
        tuple(example) if isinstance(example, (tuple, list)) else (example,)
    )
    args = () if isinstance(example, Mapping) else args
    given = check_inputs(args, kwargs, device)
    if not given:
        raise ValueError(
            "the example holds no tensor; give one input of the shape and type that the module takes"
        )
    return args, kwargs


def check_inputs(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], device: str = "cpu"
) -> list[Tensor]:
    """The tensors among the inputs, each once, in order; anything else must be plain
    data.
    """
    name, remedy = (
        ("CPU", ".cpu()") if device == "cpu" else (device.upper(), f".to({device!r})")
    )
    given = {}
    # The usual call; looking through nested containers takes longer.
    plain = not kwargs and all(type(x) is Tensor for x in args)
    for leaf in args if plain else _leaves((args, dict(kwargs))):
        # An object that is neither may hide tensors that nobody would check.
        if not isinstance(leaf, Tensor):
            if not is_plain(leaf):
                kind = type(leaf).__name__
                raise ValueError(
                    f"an input is a {kind}; compile takes tensors, numbers and containers of them"
                )
            continue
        refuse_indirect(leaf)
        if vars(leaf):
            _refuse_attributes(leaf)
        if leaf.layout != torch.strided or leaf.device.type != device:
            raise ValueError(
                f"inputs must be dense {name} tensors, got {leaf.layout} on {leaf.device}; use {remedy} or .to_dense()"
            )
        given[id(leaf)] = leaf
    return list(given.values())


def _refuse_attributes(x: Tensor) -> None:
    """A plan has no place for what somebody wrote on a tensor. Names with an underscore
    are book-keeping of torch and others; a subclass knows its own.
    """
    names = [name for name in vars(x) if not name.startswith("_")]
    if names and type(x) in (Tensor, nn.Parameter):
        raise ValueError(
            f"an input tensor carries {names[0]!r} as an attribute, which a compiled network does not see; give it as "
            "an input of its own"
        )


def _leaves(nested: Any) -> list[Any]:
    try:
        return leaves(nested)
    except RecursionError:
        raise ValueError("an input is a container that holds itself") from None


def sees_the_order_of_keywords(model: nn.Module) -> bool:
    """Whether its forward takes keywords of any name; otherwise their order means
    nothing.
    """
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):  # it is no function of Python
        return True
    return any(p.kind is p.VAR_KEYWORD for p in parameters)


def in_order(x: Tensor) -> Tensor:
    """The tensor with the strides of a fresh one, on axes of size 1 as well: these
    strides mean nothing, yet torch compares them.
    """
    wanted = strides_in_order(x.shape)
    if x.stride() == wanted:
        return x
    made = x.contiguous()
    # `contiguous` leaves the strides of axes of size 1 as they are.
    return made if made.stride() == wanted else made.as_strided(made.shape, wanted)


def strides_in_order(shape: Sequence[int]) -> tuple[int, ...]:
    """Those of a fresh tensor."""
    # From the last axis: each stride is the product of the sizes behind it.
    strides = []
    expected = 1
    for size in reversed(shape):
        strides.append(expected)
        expected *= max(size, 1)
    return tuple(reversed(strides))


def calibration_batches(
    calibration: Any, device: str = "cpu"
) -> list[Arguments] | None:
    """Every batch as arguments of the network; None where none were given."""
    if calibration is None:
        return None
    if not isinstance(calibration, Iterable) or isinstance(
        calibration, (str, bytes, Mapping)
    ):
        raise ValueError(
            f"calibration must be a tensor, or batches of inputs, got a {type(calibration).__name__}"
        )
    # One tensor is one batch, not a sequence of items.
    shown = [calibration] if isinstance(calibration, Tensor) else list(calibration)
    if not shown:
        raise ValueError("calibration holds no batch; give one, or leave it out")
    try:
        return [example_arguments(batch, device) for batch in shown]
    except ValueError as problem:
        raise ValueError(f"a calibration batch does not fit: {problem}") from None


def check_runs(model: nn.Module, example: tuple[Tensor, ...]) -> None:
    """The module itself takes the example: what its forward raises becomes one
    sentence.
    """
    try:
        with torch.no_grad():
            model(*example)
    except Exception as error:  # anybody's forward: what it raises is not known here
        raise explained(model, example, error) from error


def explained(
    model: nn.Module, given: Iterable[Tensor], error: Exception
) -> ValueError:
    """What a forward raised, as one sentence."""
    sizes = " and ".join("×".join(map(str, x.shape)) or "one number" for x in given)
    why = str(error).strip().partition("\n")[0][:200]
    if is_ours(error):
        return ValueError(
            f"{type(model).__name__} cannot be captured ({type(error).__name__}: {why}); compile its parts"
        )
    return ValueError(
        f"{type(model).__name__} does not take an input of {sizes} ({type(error).__name__}: {why}); "
        "give one of the shape and type that it takes"
    )
