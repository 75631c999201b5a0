"""The packed form a parameter was loaded from, kept beside it on the module that owns
it.

It is a hint, never the truth: whoever uses it compares it with the live tensor. It
stays with wrappers, submodules and copies, and a pickled module does not carry it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from tersify.tensor.compressed import CompressedTensor

ORIGIN_ATTRIBUTE = "_packed_origin"
FACTS_ATTRIBUTE = "_packed_facts"


class Origin(dict[str, Any]):
    """What copies of a module share and pickles of it leave out: packed forms by the
    parameter's name in its module.
    """

    def __deepcopy__(self, memo: dict[int, Any]) -> Origin:
        return Origin(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return (dict, ())


def set_origins(model: nn.Module, packed: Mapping[str, CompressedTensor]) -> None:
    """Leave the packed forms on the modules that own the parameters, in place of
    earlier ones.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    # Earlier ones would describe weights that were loaded before.
    for module in modules.values():
        module.__dict__.pop(ORIGIN_ATTRIBUTE, None)
    for name, tensor in packed.items():
        owner, _, own_name = name.rpartition(".")
        module = modules.get(owner)
        if module is not None:
            module.__dict__.setdefault(ORIGIN_ATTRIBUTE, Origin())[own_name] = tensor


def origins_of(model: nn.Module) -> dict[str, CompressedTensor]:
    """By the parameter's name in `model`."""
    found = {}
    # A module that is used under two names has its weights under both.
    for prefix, module in model.named_modules(remove_duplicate=False):
        for name, tensor in vars(module).get(ORIGIN_ATTRIBUTE, {}).items():
            found[f"{prefix}.{name}" if prefix else name] = tensor
    return found


def set_file_facts(
    model: nn.Module, recipe: str | None, metadata: Mapping[str, Any]
) -> None:
    """The recipe and the metadata of the file that the module was loaded from."""
    model.__dict__[FACTS_ATTRIBUTE] = Origin(recipe=recipe, metadata=dict(metadata))


def file_facts(model: nn.Module) -> tuple[str | None, dict[str, Any]]:
    facts = vars(model).get(FACTS_ATTRIBUTE, {})
    return facts.get("recipe"), facts.get("metadata", {})
