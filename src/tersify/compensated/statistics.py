"""What calibration batches say about each matrix: which outputs matter to the loss, and
how its inputs go together.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tersify.calibration import Calibration
from tersify.compensated.matrices import Matrix
from tersify.modes import eval_mode

# of a token's weight that its own gradient decides; one text tells too little to trust
# it alone
TOKEN_FRACTION = 0.5
COLUMNS_AT_ONCE = 512


@dataclass(eq=False)
class Statistics:
    """Sums over tokens for one matrix.

    `fisher` is Σ g² for each row, with g the gradient of the loss for that output;
    `hessian` is Σ w·x·xᵀ over inputs x, a token counted by w, its fraction of the squared
    gradients. An embedding's inputs are its tokens: `counts` holds how often each was
    met, and `gram` is Σ g·gᵀ of the gradients that reach its outputs.
    """

    fisher: Tensor
    hessian: Tensor
    tokens: int = 0
    counts: Tensor | None = None
    gram: Tensor | None = None

    def add(self, x: Tensor, gradient: Tensor) -> None:
        squares = gradient.square()
        self.fisher += squares.sum(0)
        fraction = (squares / squares.mean(0).clamp(min=1e-30)).mean(1)
        fraction = (
            TOKEN_FRACTION * fraction / fraction.mean().clamp(min=1e-30)
            + 1
            - TOKEN_FRACTION
        )
        add_gram_(self.hessian, x * fraction.sqrt()[:, None])
        self.tokens += len(x)

    def add_embedded(self, ids: Tensor, gradient: Tensor) -> None:
        assert self.counts is not None
        assert self.gram is not None
        self.counts += torch.bincount(ids, minlength=len(self.counts))
        add_gram_(self.gram, gradient)


def add_gram_(total: Tensor, x: Tensor) -> None:
    """Add xᵀx to the upper triangle of `total`, block row by block row; `mirrored`
    gives the whole.
    """
    for first in range(0, x.shape[1], COLUMNS_AT_ONCE):
        end = first + COLUMNS_AT_ONCE
        total[first:end, first:].addmm_(x[:, first:end].T, x[:, first:])


def mirrored(upper: Tensor) -> Tensor:
    """The symmetric matrix of an upper triangle."""
    return upper.triu() + upper.triu(1).T


@dataclass(eq=False)
class _Taps:
    """Hooks on the modules of some matrices, which add to their statistics during
    backward.
    """

    made: dict[str, Statistics] = field(default_factory=dict)
    hooks: list[Any] = field(default_factory=list)

    def watch(self, matrix: Matrix) -> None:
        rows, columns = matrix.weight.shape
        zeros = lambda *shape: torch.zeros(*shape, device=matrix.parameter.device)  # noqa: E731
        own = Statistics(fisher=zeros(rows), hessian=zeros(columns, columns))
        self.made[matrix.name] = own
        if matrix.linear is not None:
            self.hooks.append(
                matrix.linear.register_forward_hook(_on_backward(own.add))
            )
        if matrix.embedding is not None:
            own.counts, own.gram = zeros(rows).long(), zeros(columns, columns)
            self.hooks.append(
                matrix.embedding.register_forward_hook(_on_backward(own.add_embedded))
            )


def _on_backward(
    add: Callable[[Tensor, Tensor], None],
) -> Callable[[nn.Module, tuple[Any, ...], Tensor], None]:
    def forward(module: nn.Module, args: tuple[Any, ...], out: Tensor) -> None:
        given = args[0].detach()
        rows = (
            given.flatten()
            if isinstance(module, nn.Embedding)
            else given.reshape(-1, given.shape[-1]).float()
        )
        if out.requires_grad:
            out.register_hook(
                lambda g: add(rows, g.detach().reshape(-1, g.shape[-1]).float())
            )

    return forward


@contextlib.contextmanager
def _only_activations(model: nn.Module, matrices: Sequence[Matrix]) -> Iterator[None]:
    """Gradients flow to activations alone: no weight keeps one, and outputs that need
    none so far begin the chain.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    first = [
        module
        for matrix in matrices
        for module in (matrix.linear, matrix.embedding)
        if module is not None
    ]
    hooks = []
    try:
        for parameter in trained:
            parameter.requires_grad_(False)
        for module in first:
            hooks.append(module.register_forward_hook(_begin_chain, prepend=True))
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)
        for hook in hooks:
            hook.remove()


def _begin_chain(module: nn.Module, args: tuple[Any, ...], out: Tensor) -> None:
    if not out.requires_grad:
        out.requires_grad_(True)


def statistics_of(
    model: nn.Module,
    matrices: Sequence[Matrix],
    calibration: Calibration,
    *,
    bf16: bool = False,
    tell: Callable[[str, int, int], None] = lambda what, done, all_of_it: None,
) -> dict[str, Statistics]:
    """One forward and backward pass a batch; memory is that of one batch and of the
    Hessians.
    """
    taps = _Taps()
    device = next(model.parameters()).device
    try:
        for matrix in matrices:
            taps.watch(matrix)
        with eval_mode(model), torch.enable_grad(), _only_activations(model, matrices):
            count = sum(1 for _ in calibration.batches)
            for number, (inputs, targets) in enumerate(calibration.pairs(), 1):
                with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                    outputs = model(inputs)
                loss = calibration.loss(outputs, targets)
                if loss.requires_grad:
                    loss.backward()
                tell("statistics", number, count)
    finally:
        for hook in taps.hooks:
            hook.remove()
    for name, own in taps.made.items():
        seen = own.tokens if own.counts is None else int(own.counts.sum())
        if not seen:
            raise ValueError(
                f"no calibration batch reached {name!r}; give batches that use all of the network"
            )
    return taps.made


def next_token_loss(outputs: Any, ids: Tensor) -> Tensor:
    """The summed cross-entropy of each token behind those before it, for a causal
    language model.
    """
    logits = outputs.logits if hasattr(outputs, "logits") else outputs
    return F.cross_entropy(
        logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="sum"
    )
