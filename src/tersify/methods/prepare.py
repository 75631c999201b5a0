"""Weights of all sites made together, when a step begins, before the forward pass reads
them one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tersify import ranks
from tersify.methods.base import Bound, Method, Site, Transform
from tersify.methods.flat_weights import FlatWeights, Prepared
from tersify.methods.prepared_slots import Slot

# What is prepared waits in memory, with a few temporaries. A network of more weights is
# bound by its arithmetic, and float32 could not count them.
MOST_PREPARED = 1 << 24


class Preparation:
    """Prepares the weights of one method, for all of its sites in one call."""

    def __init__(self, method: Method, bound: Bound, slots: Sequence[Slot]) -> None:
        self._method, self._bound, self._slots = method, bound, slots
        self._constants: dict[str, Any] = {}
        self._parameters = [p for t in bound.transforms for p in t.parameters()]
        # Only the chain's last value is what a layer reads, so only that one may be
        # cast for autocast.
        self._is_last = all(
            s.chain[-1] is t for s, t in zip(bound.sites, bound.transforms, strict=True)
        )
        self._passing: list[bool] = []
        self._at_work, self._their_slots = bound, slots

    def run(self, values: dict[Slot, Tensor]) -> None:
        """Each slot's value becomes what the method makes of it; slots it cannot serve
        are taken out.
        """
        passing = [t.passes_in_training for t in self._bound.transforms]
        # Rarely: gates that a norm covers are known when the first step comes.
        if passing != self._passing:
            self._leave_out(passing)
        bound, slots = self._at_work, self._their_slots
        made = None
        if slots and all(slot in values for slot in slots):
            made = self._make(bound, [values[slot] for slot in slots], slots)
        if made is None:
            # Out with them: a later method of the chain must not build on a value that
            # was never made.
            for slot in slots:
                values.pop(slot, None)
        else:
            values.update(zip(slots, made, strict=True))

    def _leave_out(self, passing: list[bool]) -> None:
        """Prepare only sites whose transform changes the latent. Cached sizes and
        indices belong to the old set of sites and are dropped.
        """
        bound = self._bound
        self._passing, self._constants = passing, {}
        if not any(passing):
            self._at_work, self._their_slots = bound, self._slots
            return
        each = zip(bound.sites, bound.transforms, self._slots, passing, strict=True)
        chosen = [
            (site, transform, slot)
            for site, transform, slot, passes in each
            if not passes
        ]
        self._at_work = Bound(
            [site for site, _, _ in chosen], [t for _, t, _ in chosen], bound.shared
        )
        self._their_slots = [slot for _, _, slot in chosen]

    def _make(
        self, bound: Bound, entering: Sequence[Tensor], slots: Sequence[Slot]
    ) -> Sequence[Tensor] | None:
        first = entering[0]
        if any(
            t.dtype is not first.dtype or t.device != first.device for t in entering
        ):
            return None
        learns = any(p.requires_grad for p in self._parameters)
        weights = FlatWeights(entering, self._constants)
        # Recording costs time and memory, and without learned parameters the gradient
        # is known: it passes times `gain`.
        weights.values.requires_grad_(learns)
        with torch.set_grad_enabled(learns):
            made = self._method.prepare(bound, weights)
        if made is None:
            return None
        prepared = made if isinstance(made, Prepared) else None
        value, gain = (made[0], made[1]) if isinstance(made, tuple) else (made, None)
        casts = (
            {slot.cast for slot in slots}
            if self._is_last and first.dtype is torch.float32
            else set()
        )
        # One cast of the whole vector serves all, unless their layers want different
        # types.
        cast = casts.pop() if len(casts) == 1 else None
        record = _Record(
            bound.transforms,
            weights,
            value,
            gain,
            cast,
            prepared.gradient if prepared else None,
        )
        with torch.enable_grad():
            return _AllAtOnce.apply(record, *entering, *(p for _, p in record.learned))


class _Record:
    """What the backward pass needs. It can come more than once, so nothing here is
    given up after the first.
    """

    def __init__(
        self,
        transforms: Sequence[Transform],
        weights: FlatWeights,
        value: Tensor,
        gain: Tensor | None,
        cast: torch.dtype | None,
        own_gradient: Callable[[Tensor], Tensor] | None,
    ) -> None:
        self.transforms, self.weights, self.value, self.gain, self.cast = (
            transforms,
            weights,
            value,
            gain,
            cast,
        )
        self.own_gradient = own_gradient
        # Parameters with the index of the tensor they belong to, in the order in which
        # their gradients are found.
        self.learned = [
            (i, p)
            for learned in weights.learned
            for i, p in enumerate(learned.parameters)
            if p is not None
        ]

    def gradients(self, given: Sequence[Tensor | None]) -> list[Tensor | None]:
        """For what entered, then for the parameters; None where no gradient came."""
        weights = self.weights
        # A weight that the loss did not use has no gradient; the flat vector needs
        # zeros in its place.
        whole = [
            torch.zeros_like(t) if g is None else g
            for g, t in zip(given, weights.tensors, strict=True)
        ]
        # Gradients of cast weights come in half precision and continue in the latents'
        # own type.
        flat = weights.flatten(whole).to(weights.values.dtype)
        vectors: Sequence[Tensor] = ()
        # Torch recorded `prepare`: differentiate its graph, and keep it, because a user
        # may call backward twice.
        if self.value.requires_grad:
            wanted = [weights.values, *(learned.vector for learned in weights.learned)]
            flat, *vectors = torch.autograd.grad(
                self.value, wanted, flat, retain_graph=True
            )
        else:
            if weights.learned and self.own_gradient is not None:
                vectors = [self.own_gradient(flat)]
            if self.gain is not None:
                flat = (
                    torch.where(self.gain, flat, 0.0)
                    if self.gain.dtype is torch.bool
                    else flat * self.gain
                )
        theirs: list[Tensor] = []
        for vector, learned in zip(vectors, weights.learned, strict=True):
            parts = zip(learned.split(vector), learned.parameters, strict=True)
            theirs += [part for part, p in parts if p is not None]
        back = weights.pieces(flat)
        if all(g is not None for g in given):
            return [*back, *theirs]
        entered = [
            None if g is None else piece for g, piece in zip(given, back, strict=True)
        ]
        return [
            *entered,
            *(
                None if given[i] is None else g
                for (i, _), g in zip(self.learned, theirs, strict=True)
            ),
        ]

    def differentiable_gradients(
        self, given: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        """The same gradients through each transform's own forward, recorded by
        autograd, for second derivatives.
        """
        # Outputs that the loss did not use have no gradient to pass on.
        come = {i: g for i, g in enumerate(given) if g is not None}
        inputs = [self.weights.tensors[i] for i in come]
        outputs = [
            self.transforms[i](t).to(g.dtype)
            for (i, g), t in zip(come.items(), inputs, strict=True)
        ]
        wanted = [
            t
            for t in (*inputs, *(p for i, p in self.learned if i in come))
            if t.requires_grad
        ]
        found = torch.autograd.grad(
            outputs, wanted, [*come.values()], create_graph=True, allow_unused=True
        )
        # By identity: comparing tensors would compare their numbers.
        by_tensor = {id(t): g for t, g in zip(wanted, found, strict=True)}
        entered = zip(self.weights.tensors, given, strict=True)
        own = [None if g is None else by_tensor.get(id(t)) for t, g in entered]
        return [*own, *(by_tensor.get(id(p)) for _, p in self.learned)]


class _AllAtOnce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, record: _Record, *inputs: Tensor) -> tuple[Tensor, ...]:
        # None stays None: an optimizer skips a parameter without gradient, and would
        # apply momentum and decay to one with zeros.
        ctx.set_materialize_grads(False)
        ctx.record = record
        value = record.value.detach()
        return tuple(
            record.weights.pieces(
                value if record.cast is None else value.to(record.cast)
            )
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        if torch.is_grad_enabled():
            # Grad mode is on within backward only under create_graph=True. The flat
            # path records nothing, so a second derivative would be lost.
            return None, *ctx.record.differentiable_gradients(gradients)
        return None, *ctx.record.gradients(gradients)


class Preparations:
    """All of a session's weights, from the latents through every method that works on
    them.
    """

    def __init__(
        self,
        work: Sequence[tuple[Method, Bound]],
        sites: Sequence[Site],
        slots: Sequence[Slot],
    ) -> None:
        slot_of = {
            id(site.latent): slot for site, slot in zip(sites, slots, strict=True)
        }
        self._sites, self._slots = sites, slots
        self._is_too_large = sum(s.latent.numel() for s in sites) > MOST_PREPARED
        self._steps = [
            Preparation(m, b, [slot_of[id(site.latent)] for site in b.sites])
            for m, b in work
        ]

    def forget(self) -> None:
        """Discard all prepared weights; a weight is then computed when it is read."""
        for slot in self._slots:
            slot.clear()

    def run(self) -> None:
        """Make what the coming forward pass will read, if the last one read any of it.

        A compiled network computes its own weights and never asks. Between several
        ranks nothing is prepared: gradients must come one by one, to overlap with their
        exchange.
        """
        asked = [slot.take_asked() for slot in self._slots]
        # Asking also resets the flags, so for a network that nobody reads weights are
        # prepared once at most.
        if not any(asked) or self._is_too_large or ranks.together():
            return
        latents: dict[Slot, Tensor] = {
            slot: site.latent
            for site, slot in zip(self._sites, self._slots, strict=True)
        }
        values = dict(latents)
        # In the recipe's order: what one method makes enters the next.
        for step in self._steps:
            step.run(values)
        for slot, value in values.items():
            slot.fill(value, latents[slot])
