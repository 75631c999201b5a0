"""Calibration: a little data that says how much each weight matters to the loss."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tersify.methods import Method, Site
from tersify.methods.inputs import Seen
from tersify.modes import eval_mode


@dataclass(frozen=True)
class Calibration:
    """Batches (inputs, targets) and the loss of the network's outputs; small batches
    tell more than large ones.
    """

    batches: Iterable[tuple[Any, Any]]
    loss: Callable[[Any, Any], Tensor] = F.cross_entropy

    @classmethod
    def of(cls, given: Calibration | Iterable[tuple[Any, Any]]) -> Calibration:
        return given if isinstance(given, Calibration) else cls(given)

    def __post_init__(self) -> None:
        # it would be used up by the first who looks
        if isinstance(self.batches, Iterator):
            object.__setattr__(self, "batches", list(self.batches))

    def pairs(self) -> Iterator[tuple[Any, Any]]:
        batch: Any
        any_came = False
        for batch in self.batches:
            any_came = True
            if not isinstance(batch, (tuple, list)) or len(batch) != 2:
                told = (
                    f"{len(batch)} values"
                    if isinstance(batch, (tuple, list))
                    else f"a {type(batch).__name__}"
                )
                raise ValueError(
                    f"calibration holds pairs (inputs, targets), got {told}; write [(inputs, targets), …]"
                )
            yield batch[0], batch[1]
        if not any_came:
            raise ValueError(
                "calibration holds no batch, or is an iterator that was read before; "
                "give at least one pair (inputs, targets)"
            )


def measured(
    model: nn.Module,
    methods: Sequence[Method],
    sites: list[Site],
    calibration: Calibration | None,
) -> list[Site]:
    """The sites with their sensitivity and input norms, where one of the methods needs
    them.
    """
    needing = [
        method for method in methods if method.needs_calibration or method.needs_inputs
    ]
    if not needing or not sites:
        return sites
    if calibration is None:
        raise ValueError(
            f"{needing[0].name!r} as it is set needs data; give calibration= batches of (inputs, targets)"
        )
    # Each measurement is a pass over all batches, so only those that are asked for are
    # made.
    if any(method.needs_calibration for method in methods):
        values = squared_gradients(model, sites, calibration)
        sites = [
            replace(site, sensitivity=value)
            for site, value in zip(sites, values, strict=True)
        ]
    if any(method.needs_inputs for method in methods):
        norms = input_norms(model, sites, calibration)
        sites = [
            replace(site, input_norm=norm)
            for site, norm in zip(sites, norms, strict=True)
        ]
    return sites


def squared_gradients(
    model: nn.Module, sites: Sequence[Site], calibration: Calibration
) -> list[Tensor]:
    """The mean over the batches of each weight's squared gradient, with the network in
    eval mode.
    """
    # The square of the gradient of a batch's mean loss stands for the Fisher diagonal;
    # it is an average over batches, so small batches come nearer to single samples.
    latents = [site.latent for site in sites]
    sums = list(map(torch.zeros_like, latents))
    batches = 0
    with eval_mode(model), torch.enable_grad(), _requiring_gradients(latents):
        for inputs, targets in calibration.pairs():
            if targets is None and calibration.loss is F.cross_entropy:
                raise ValueError(
                    "cross-entropy needs targets; give pairs (inputs, targets), or a Calibration with its own loss"
                )
            loss = calibration.loss(model(inputs), targets)
            batches += 1
            # For instance where a frozen head gives constant outputs.
            if not loss.requires_grad:
                continue  # the outputs depend on none of the weights
            for total, gradient in zip(
                sums, torch.autograd.grad(loss, latents, allow_unused=True), strict=True
            ):
                if gradient is not None:
                    total += gradient.square()
    return [total / batches for total in sums]


def input_norms(
    model: nn.Module, sites: Sequence[Site], calibration: Calibration
) -> list[Tensor]:
    """For each weight the L2 norm of the input channel it meets, over all batches and
    places; broadcasts over it.
    """
    squares = list(map(_InputSquares, sites))
    hooks = [each.module.register_forward_pre_hook(each.add) for each in squares]
    try:
        with eval_mode(model), torch.no_grad():
            for inputs, _ in calibration.pairs():
                model(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return [each.norm() for each in squares]


def seen_inputs(
    model: nn.Module, layers: Mapping[str, nn.Module], calibration: Calibration
) -> dict[str, Seen]:
    """What the batches bring to each layer, in the mode the network is in; its buffers
    stay as they were.

    A network about to be trained is judged with the statistics of the batches: those
    that its batch norms hold may be of weights it no longer has.
    """
    seen: dict[str, list[Tensor]] = {name: [] for name in layers}

    def look(name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
            # Three numbers on the device; reading them here would wait for it at every
            # layer.
            x = args[0].detach().float()
            seen[name].append(torch.stack([x.abs().amax(), x.abs().mean(), x.amin()]))

        return hook

    # In training mode the passes would move running statistics, so they are put back.
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    hooks = [
        module.register_forward_pre_hook(look(name)) for name, module in layers.items()
    ]
    try:
        with torch.no_grad():
            for inputs, _ in calibration.pairs():
                model(inputs)
    finally:
        for hook in hooks:
            hook.remove()
        for buffer, value in before:
            buffer.data.copy_(value)
    for name, found in seen.items():
        if not found:
            raise ValueError(
                f"no calibration batch reached {name!r}; leave its activations out with a rule of its own"
            )
    tables = {name: torch.stack(found) for name, found in seen.items()}
    return {
        name: Seen(float(t[:, 0].max()), float(t[:, 1].mean()), float(t[:, 2].min()))
        for name, t in tables.items()
    }


class _InputSquares:
    """Sums the squares of what enters the module that owns a weight, for each of its
    input channels.
    """

    def __init__(self, site: Site) -> None:
        self.site = site
        self.module = site.owners[0][0]
        self._is_conv = isinstance(self.module, (nn.Conv1d, nn.Conv2d, nn.Conv3d))
        if (
            not (self._is_conv or isinstance(self.module, nn.Linear))
            or site.latent.ndim < 2
        ):
            raise ValueError(
                f"{site.name!r} belongs to a {type(self.module).__name__}, whose inputs do not meet its weights one by "
                "one; the score 'wanda' is for the weights of linear layers and convolutions"
            )
        self._sum: Tensor | None = None

    def add(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        # (channels, everything else); in float32, since squares of half-precision
        # numbers overflow.
        channels = args[0].detach().float().movedim(1 if self._is_conv else -1, 0)
        squares = channels.flatten(1).square().sum(1)
        self._sum = squares if self._sum is None else self._sum + squares

    def norm(self) -> Tensor:
        if self._sum is None:
            raise ValueError(
                f"no calibration batch reached {self.site.name!r}; leave it out with a rule of its own"
            )
        shape = self.site.latent.shape
        # A grouped convolution's weight is (out, in / groups, …): each block of output
        # channels meets its own block of inputs. The norms become (out, in / groups, 1,
        # …).
        groups = len(self._sum) // shape[1]
        per_group = (
            self._sum.sqrt()
            .view(groups, 1, shape[1])
            .expand(-1, shape[0] // groups, -1)
        )
        return per_group.reshape(*shape[:2], *[1] * (len(shape) - 2))


@contextlib.contextmanager
def _requiring_gradients(latents: Sequence[Tensor]) -> Iterator[None]:
    """A weight that training leaves alone can be compressed, and so measured, like any
    other.
    """
    frozen = [latent for latent in latents if not latent.requires_grad]
    try:
        for latent in frozen:
            latent.requires_grad_(True)
        yield
    finally:
        for latent in frozen:
            latent.requires_grad_(False)
