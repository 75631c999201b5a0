"""CompressedModel: every parameter and buffer of a network, compressed or dense, by its
plain name.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from tersify.tensor.attached_names import refuse_session
from tersify.tensor.compressed import CompressedTensor
from tersify.tensor.inputs import METADATA, fix_inputs, read_facts
from tersify.tensor.measures import entropy_bits, sparsity_percent
from tersify.tensor.memory import find_sharing, memory_key
from tersify.tensor.origin import set_file_facts, set_origins
from tersify.tensor.torch_prune_names import MASK, ORIGINAL

GRAPH = "graph"  # in the metadata: the operations of the network
MOST_LINES = 20  # that print shows


class CompressedModel(Mapping[str, "CompressedTensor | Tensor"]):
    """A mapping `name → CompressedTensor | Tensor`, with the recipe (TOML text) and
    free metadata.

    Args:
        tensors: every parameter and buffer by its plain name.
        aliases: further names of tied tensors, each with the name that holds the tensor; looking an alias up gives
            the same tensor, and iteration names each tensor once.
        recipe: TOML text.
        metadata: anything JSON can hold.
    """

    def __init__(
        self,
        tensors: Mapping[str, CompressedTensor | Tensor],
        *,
        aliases: Mapping[str, str] | None = None,
        recipe: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self._tensors = dict(tensors)
        self.aliases = dict(aliases or {})
        self.recipe = recipe
        self.metadata = dict(metadata or {})
        # An alias of an alias, or one that hides a tensor, would be ambiguous.
        for alias, name in self.aliases.items():
            if name not in self._tensors or alias in self._tensors:
                raise ValueError(
                    f"alias {alias!r} → {name!r} must map a new name to a tensor that is there"
                )

    def __getitem__(self, name: str) -> CompressedTensor | Tensor:
        return self._tensors[self.aliases.get(name, name)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        return f"CompressedModel({len(self)} tensors, {len(self.compressed())} of them compressed)"

    def __str__(self) -> str:
        """A line for each compressed tensor, and what they are together."""
        lines = [
            f"  {name}: {'×'.join(map(str, t.shape))}, {t.levels or 'own'} levels, {sparsity_percent([t]):.1f} % zeros"
            for name, t in self.compressed().items()
        ]
        # Large models have hundreds of tensors.
        shown = lines[:MOST_LINES] + (
            [f"  and {len(lines) - MOST_LINES} more"] if len(lines) > MOST_LINES else []
        )
        weights = sum(t.numel() for t in self.compressed().values())
        told = f"{weights:,} weights, {self.sparsity_percent():.1f} % zeros, {self.entropy_bits():.2f} bits a weight"
        head = f"CompressedModel: {len(lines)} of {len(self)} tensors compressed"
        return "\n".join(
            [f"{head} ({told}); {self.dense_bytes():,} bytes as dense tensors", *shown]
        )

    def compressed(self) -> dict[str, CompressedTensor]:
        """The compressed tensors alone."""
        return {
            name: t
            for name, t in self._tensors.items()
            if isinstance(t, CompressedTensor)
        }

    def sparsity_percent(self) -> float:
        """The fraction of the compressed weights that is zero, in percent."""
        return sparsity_percent(self.compressed().values())

    def entropy_bits(self) -> float:
        """The order-0 entropy of the codes, in bits a weight."""
        return entropy_bits(self.compressed().values())

    def dense_bytes(self) -> int:
        """Bytes of the same network with every tensor dense in its own dtype, each tied
        tensor once.
        """
        return sum(t.numel() * t.dtype.itemsize for t in self._tensors.values())

    def state_dict(self) -> dict[str, Tensor]:
        """Plain dense tensors under every name, aliases too."""
        dense = {
            n: t.to_dense() if isinstance(t, CompressedTensor) else t
            for n, t in self._tensors.items()
        }
        return dense | {alias: dense[name] for alias, name in self.aliases.items()}


def tied(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Each tensor once, under the first of its names, and the aliases: further name →
    first name.
    """
    keys = {name: memory_key(tensor) for name, tensor in state.items()}
    # The first name in the order of the state dict holds the tensor.
    first: dict[Hashable, str] = {}
    for name, key in keys.items():
        first.setdefault(key, name)
    aliases = {name: first[key] for name, key in keys.items() if first[key] != name}
    return {
        name: tensor for name, tensor in state.items() if name not in aliases
    }, aliases


def load_state(packed: CompressedModel, into: nn.Module) -> nn.Module:
    """Write the weights of `packed` into a plain module and leave their packed forms
    beside them.
    """
    names = [*packed, *packed.aliases]
    check_names({name: tuple(packed[name].shape) for name in names}, into)
    for name, tensor in into.state_dict().items():
        if packed[name].dtype != tensor.dtype:
            raise ValueError(
                f"{name!r} is {packed[name].dtype} in the file, {tensor.dtype} in the module; "
                f"load into a module of the file's dtype, then convert it"
            )
    # Everything is checked before the first weight is written, so a refused file leaves
    # the module as it was.
    facts = read_facts(packed.metadata.get(METADATA, {}), into)
    dense = packed.state_dict()
    through_others = _check_sharing(dense, into)
    with torch.no_grad():
        # `through_others` share memory with tensors that are written anyway.
        into.load_state_dict(
            {n: t for n, t in dense.items() if n not in through_others}, strict=False
        )
    fix_inputs(into, facts)
    coded = packed.compressed()
    coded |= {
        alias: coded[name] for alias, name in packed.aliases.items() if name in coded
    }
    set_origins(into, coded)
    set_file_facts(into, packed.recipe, packed.metadata)
    return into


def _check_sharing(given: Mapping[str, Tensor], into: nn.Module) -> list[str]:
    """Tensors that share memory in the module must have the same numbers in the file,
    or the last would win.

    Returns those that torch cannot write to, and that get their numbers through others.
    """
    own = into.state_dict(keep_vars=True)
    held, aliases = tied(own)
    sharing = find_sharing(held)
    for name in sharing.folded:
        if name not in sharing.views:
            raise ValueError(
                f"{name!r} has several entries in one place of memory in {type(into).__name__}, as expand() makes "
                "them, and cannot be written to; give the module a clone of it"
            )
    # A tied pair in the module may be two tensors in the file.
    wanted = {
        alias: (name, given[name])
        for alias, name in aliases.items()
        if given[alias] is not given[name]
    }
    for name, view in sharing.views.items():
        wanted[name] = (
            view.of,
            given[view.of].flatten()[view.index.to(given[view.of].device)],
        )
    for name, (other, value) in wanted.items():
        # NaN is itself
        same = (given[name] == value) | (
            (given[name] != given[name]) & (value != value)
        )
        if not bool(same.all()):
            raise ValueError(
                f"{name!r} and {other!r} share memory in {type(into).__name__} and have different values in the file; "
                "load into a module whose weights do not share memory"
            )
    return [name for name in sharing.folded if name in sharing.views]


def check_names(
    shapes: Mapping[str, tuple[int, ...]],
    into: nn.Module,
    *,
    may_lack: tuple[str, ...] = (),
) -> None:
    """The names and shapes of a file must be those of the module; names that hold one
    of `may_lack` may be missing.
    """
    refuse_session(
        into, "end that with session.bake_(), or give a fresh network of that kind"
    )
    own = into.state_dict()
    # Compared as sets of names: order in a file means nothing.
    missing = [
        name
        for name in own
        if name not in shapes and not any(part in name for part in may_lack)
    ]
    unknown = [name for name in shapes if name not in own]
    if missing or unknown:
        raise ValueError(
            f"the file and {type(into).__name__} name different tensors: "
            f"missing in the file {_some(missing)}, unknown to the module {_some(unknown)}"
            + _mask_remedy([*missing, *unknown])
        )
    for name, shape in shapes.items():
        if not is_lazy(own[name]) and shape != tuple(own[name].shape):
            raise ValueError(
                f"{name!r} has shape {shape} in the file, {tuple(own[name].shape)} in the module"
            )


def _mask_remedy(names: list[str]) -> str:
    if not any(name.endswith((ORIGINAL, MASK)) for name in names):
        return ""
    return (
        f"; NAME{ORIGINAL} and NAME{MASK} are what torch.nn.utils.prune makes of a weight: "
        "tersify.torch_masks.merge_torch_masks(state) makes one tensor of each pair, and prune.remove of a module's"
    )


def _some(names: list[str]) -> str:
    shown = ", ".join(map(repr, sorted(names)[:3]))
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown or "none"
