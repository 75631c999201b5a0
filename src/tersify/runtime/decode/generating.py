"""transformers' `generate` with our loop in it, and torch for what our loop does not do."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from tersify.runtime.decode.hf_loop import LeftToTorchError


def with_loop(model: Any, decode: Callable[..., Any]) -> Any:
    """The model itself under another class, whose greedy search and sampling is
    `decode`: both have the same attributes.

    `custom_generate` would do without a class, but transformers keeps a streamer and a
    tokenizer from functions that are given there.
    """
    kind = type(model)

    def sample(_: Any, *inputs: Any, **settings: Any) -> Any:
        return decode(model, *inputs, **settings)

    def assisted(_: Any, *inputs: Any, **settings: Any) -> Any:
        # Guesses of an assistant save time and change no greedy text; our steps are
        # cheap enough without.
        for name in ("inputs_tensor", "assistant_model", "assistant_tokenizer"):
            settings.pop(name, None)
        settings.pop("tokenizer", None)
        return decode(model, *inputs, **settings)

    def beams(_: Any, *inputs: Any, **settings: Any) -> Any:
        asked = settings["generation_config"].num_beams
        say_torch_runs(model, LeftToTorchError(f"num_beams={asked}"))
        return kind._beam_search(model, *inputs, **settings)

    loops = {"_sample": sample, "_assisted_decoding": assisted, "_beam_search": beams}
    # Some of transformers' checks and warnings read the name of the class.
    named = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    made: Any = object.__new__(type(kind.__name__, (kind,), {**loops, **named}))
    object.__setattr__(made, "__dict__", model.__dict__)
    return made


def say_torch_runs(model: Any, reason: LeftToTorchError) -> None:
    """Raises the reason where there are no weights that torch could run."""
    if any(parameter.is_meta for parameter in model.parameters()):
        raise reason
    warnings.warn(
        f"torch runs this call, and nothing is faster: {reason}",
        RuntimeWarning,
        stacklevel=2,
    )
