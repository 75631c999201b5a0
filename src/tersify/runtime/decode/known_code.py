"""Whether a model computes what transformers' code says, which is what the decoder
knows.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

from torch.nn.modules import module as torch_module

ATTENTIONS = ("eager", "sdpa", "flex_attention")
FLASH = "flash_attention_"
# Hooks and classes of these do what the decoder does, or only look on.
KNOWN_PACKAGES = ("torch", "transformers", "tersify")


def unknown_part(model: Any) -> str | None:
    """What a short text may not show: another attention, a forward that is not
    transformers', a hook. None where there is nothing of the kind.
    """
    return next(_unknown_parts(model), None)


def _unknown_parts(model: Any) -> Iterator[str]:
    yield from _attentions(model.config)
    if "generate" in vars(model):
        yield "the model has a generate of its own"
    everywhere = (
        torch_module._global_forward_hooks,
        torch_module._global_forward_pre_hooks,
    )
    if not all(map(_all_known, everywhere)):
        yield "there is a hook on all modules, which the decoder would not call"
    for name, module in model.named_modules():
        if "forward" in vars(module) or not _known(type(module).forward):
            kind = f"{_package(type(module))}.{type(module).__name__}"
            yield f"{name or 'the model'!r} is a {kind} with a forward of its own"
        # Most modules have none, and there are many modules.
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            if hooks and not _all_known(hooks):
                yield f"there is a hook on {name or 'the model'!r}, which the decoder would not call"


def _attentions(config: Any) -> Iterator[str]:
    name = getattr(config, "_attn_implementation", None) or "eager"
    if name not in ATTENTIONS and not name.startswith(FLASH):
        yield f"the attention {name!r} has no kernel; eager, sdpa, flex and flash attention have"
        return
    # A known name may have been given to another function.
    for what, place, table in (
        ("attention", "transformers.modeling_utils", "ALL_ATTENTION_FUNCTIONS"),
        ("mask of", "transformers.masking_utils", "ALL_MASK_ATTENTION_FUNCTIONS"),
    ):
        found = _table(place, table).get(name)
        if found is not None and not _known(found):
            yield f"the {what} {name!r} is a function of {_package(found)}, not of transformers"


def _table(place: str, name: str) -> Any:
    # Masks have had no functions of their own for long.
    try:
        return getattr(importlib.import_module(place), name, {})
    except ImportError:
        return {}


def _all_known(hooks: Mapping[int, Any]) -> bool:
    return all(map(_known, hooks.values()))


def _known(function: Any) -> bool:
    return _package(function) in KNOWN_PACKAGES


def _package(function: Any) -> str:
    # A partial function has none of its own.
    inner = getattr(function, "func", function)
    place = getattr(inner, "__module__", None) or type(inner).__module__
    return str(place).partition(".")[0]
