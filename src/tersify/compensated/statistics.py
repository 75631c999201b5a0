"""What calibration batches say about each matrix: which outputs matter to the loss, and
how its inputs go together.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tersify.calibration import Calibration
from tersify.compensated.matrices import Matrix
from tersify.compensated.partial import Batches, PartialSums
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
    met, where that matters, and `gram` is Σ g·gᵀ of the gradients that reach its outputs.
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

    def put(self, sums: Mapping[str, Any]) -> None:
        """Go on from sums that were kept."""
        for name, kept in sums.items():
            mine = getattr(self, name)
            if isinstance(mine, Tensor):
                mine.copy_(kept)
            else:
                setattr(self, name, kept)

    def add_embedded(self, ids: Tensor, gradient: Tensor) -> None:
        assert self.gram is not None
        add_gram_(self.gram, gradient)
        if self.counts is None:
            self.tokens += len(gradient)
        else:
            self.counts += torch.bincount(ids, minlength=len(self.counts))


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
            own.gram = zeros(columns, columns)
            if not matrix.alike:
                own.counts = zeros(rows).long()
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
    kept: PartialSums | None = None,
    tell: Callable[[str, int, int], None] = lambda what, done, all_of_it: None,
) -> dict[str, Statistics]:
    """One forward and backward pass a batch; memory is that of one batch and of the
    Hessians.

    With `kept` a pass that was stopped goes on behind its last kept batch.
    """
    taps = _Taps()
    try:
        for matrix in matrices:
            taps.watch(matrix)
        with eval_mode(model), torch.enable_grad(), _only_activations(model, matrices):
            _walk(model, taps.made, calibration, bf16=bf16, kept=kept, tell=tell)
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


def _walk(
    model: nn.Module,
    made: Mapping[str, Statistics],
    calibration: Calibration,
    *,
    bf16: bool,
    kept: PartialSums | None,
    tell: Callable[[str, int, int], None],
) -> None:
    device = next(model.parameters()).device
    count = sum(1 for _ in calibration.batches)
    seen, skipped = Batches(), _resumed(made, calibration, kept, bf16=bf16)
    whole = False  # whether the sums are those of `seen`, and not kept yet
    try:
        for number, (inputs, targets) in enumerate(calibration.pairs(), 1):
            if number > skipped:
                with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                    outputs = model(inputs)
                loss = calibration.loss(outputs, targets)
                whole = False
                if loss.requires_grad:
                    loss.backward()
            if kept is not None:
                seen.add(inputs, targets)
                whole = number > skipped
                if whole and kept.is_due():
                    kept.keep(_sums(made), seen, bf16=bf16)
                    whole = False
            tell("statistics", number, count)
    except BaseException:
        # Ctrl-C, for instance: only within a backward pass is there nothing to keep
        if whole and kept is not None:
            kept.keep(_sums(made), seen, bf16=bf16)
        raise


def _sums(made: Mapping[str, Statistics]) -> dict[str, dict[str, Any]]:
    return {name: dict(vars(own)) for name, own in made.items()}


def _resumed(
    made: Mapping[str, Statistics],
    calibration: Calibration,
    kept: PartialSums | None,
    *,
    bf16: bool,
) -> int:
    """How many batches the sums have from a pass that was stopped; they are in `made`
    then.
    """
    found = None if kept is None else kept.found(set(made), bf16=bf16)
    if found is None:
        return 0
    seen = Batches()
    for inputs, targets in itertools.islice(calibration.pairs(), found["batches"]):
        seen.add(inputs, targets)
    if (seen.count, seen.digest()) != (found["batches"], found["digest"]):
        return 0  # of other texts
    for name, own in made.items():
        own.put(found["sums"][name])
    return seen.count


def next_token_loss(outputs: Any, ids: Tensor) -> Tensor:
    """The summed cross-entropy of each token behind those before it, for a causal
    language model.
    """
    logits = outputs.logits if hasattr(outputs, "logits") else outputs
    return F.cross_entropy(
        logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="sum"
    )
