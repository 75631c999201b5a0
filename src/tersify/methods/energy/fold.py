"""Energies of many sub-networks in one pass: the population folded into the batch.

All candidates share one set of weights and differ in which units are silent. So the
batch is repeated once for each candidate, and behind each layer's last module every
candidate's own units are set to zero.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tersify.methods.energy.gates import Gate, spread
from tersify.methods.energy.objectives import Objective, check_targets, group_energies
from tersify.methods.energy.unit_sites import Outlet
from tersify.modes import eval_mode

# Of the largest output behind a layer, a pass holds its input, itself, a shortcut and
# the library's scratch.
LIVE_COPIES = 4


@dataclass(frozen=True, eq=False)
class SearchedLayer:
    """One layer of the search, or several that share their units: the gate, and where
    silent units show as zeros.

    Without outlets its candidates cannot be told apart inside a batch, and are judged
    one by one.
    """

    gate: Gate
    outlets: Sequence[Outlet]

    @property
    def size(self) -> int:
        return len(self.gate.mask)


@dataclass(eq=False)
class Evaluator:
    """Energies of states on a batch. The model is left as it was, whatever happens."""

    model: nn.Module
    layers: Sequence[SearchedLayer]
    objective: Objective
    memory_bytes: float
    fold: bool = True
    targets_checked: bool = False  # once: it waits for the device
    # of one candidate's output behind any layer; known after the first pass
    largest_bytes: int = 0

    def energies(self, states: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """(S,) for (S, D) states."""
        if not (self.fold and all(layer.outlets for layer in self.layers)):
            return self.one_by_one(states, inputs, targets)
        found = []
        with self._evaluating():
            rest = states
            while len(rest):
                # The first group holds one candidate: only that pass tells how much
                # memory one takes.
                group = rest[: self._candidates_at_once()]
                with self._masked(group):
                    logits = self.model(torch.cat([inputs] * len(group)))
                found.append(self._judged(logits, targets, len(group)))
                rest = rest[len(group) :]
        return torch.cat(found)

    def one_by_one(self, states: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """The same with really masked weights, one pass for each state."""
        # Restored whatever happens, since training goes on with these masks.
        kept = [layer.gate.mask.clone() for layer in self.layers]
        found = []
        try:
            with self._evaluating(gates_open=False):
                for state in states:
                    set_gates_(self.layers, state)
                    found.append(self._judged(self.model(inputs), targets, 1))
        finally:
            torch._foreach_copy_([layer.gate.mask for layer in self.layers], kept)
        return torch.cat(found)

    def _judged(self, logits: Any, targets: Tensor, groups: int) -> Tensor:
        if (
            not isinstance(logits, Tensor)
            or not logits.ndim
            or len(logits) != groups * len(targets)
        ):
            found = (
                f"shape {tuple(logits.shape)}"
                if isinstance(logits, Tensor)
                else f"a {type(logits).__name__}"
            )
            raise ValueError(
                f"the network must return one row of logits for each of the {groups * len(targets)} inputs, got {found}"
            )
        if not self.targets_checked:
            check_targets(self.objective, logits, targets)
            self.targets_checked = True
        return group_energies(
            self.objective,
            # Autocast gives bf16, of which small differences between energies would be
            # rounded away.
            logits if logits.dtype == torch.float64 else logits.float(),
            targets,
            groups,
        )

    def _candidates_at_once(self) -> int:
        if not self.largest_bytes:
            return 1
        return max(1, int(self.memory_bytes / (LIVE_COPIES * self.largest_bytes)))

    @contextlib.contextmanager
    def _evaluating(self, gates_open: bool = True) -> Iterator[None]:
        """No gradients, running statistics that are read and not written, no dropout;
        bf16 on CUDA.
        """
        device = self.layers[0].gate.mask.device.type
        try:
            for layer in self.layers:
                layer.gate.open = gates_open
            # Without the cache: casts must be part of a captured graph, not of its
            # warm-up.
            precision = torch.autocast(
                device, torch.bfloat16, enabled=device == "cuda", cache_enabled=False
            )
            with eval_mode(self.model), torch.no_grad(), precision:
                yield
        finally:
            for layer in self.layers:
                layer.gate.open = False

    @contextlib.contextmanager
    def _masked(self, states: Tensor) -> Iterator[None]:
        hooks = []
        # Numbers of the type that the layers give, made once for all of them: each
        # would be a launch of its own.
        keep = states.to(
            torch.bfloat16 if states.is_cuda else self.layers[0].gate.mask.dtype
        )
        try:
            for layer, own in zip(
                self.layers,
                keep.split([layer.size for layer in self.layers], 1),
                strict=True,
            ):
                for outlet in layer.outlets:
                    hooks.append(
                        outlet.module.register_forward_hook(self._silencer(outlet, own))
                    )
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _silencer(
        self, outlet: Outlet, states: Tensor
    ) -> Callable[[nn.Module, Any, Tensor], None]:
        # (groups, indices along the outlet's dimension).
        keep = spread(states, outlet.unit)
        groups = len(states)

        def silence_(module: nn.Module, args: Any, output: Tensor) -> None:
            self.largest_bytes = max(
                self.largest_bytes, output.numel() * output.element_size() // groups
            )
            # The batch holds the candidates one behind the other: (groups, samples, …).
            grouped = output.view(groups, -1, *output.shape[1:])
            shape = [groups] + [1] * output.ndim
            # The groups' dimension in front moves dimension 1 to 2; a negative one
            # counts from the end and stays.
            shape[outlet.dim + (outlet.dim > 0)] = -1
            grouped.mul_(keep.view(shape))

        return silence_


@torch.no_grad()
def set_gates_(layers: Sequence[SearchedLayer], state: Tensor) -> None:
    """Make `state` (D,) the sub-network in use."""
    masks = [layer.gate.mask for layer in layers]
    torch._foreach_copy_(
        masks, state.to(masks[0].dtype).split([len(mask) for mask in masks])
    )
