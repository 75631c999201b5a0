"""Many tensors end to end in one vector, so that one call serves all of them.

An eager step of a small network is bound by its host: by calls, not by arithmetic. A
method that computes on the vector makes as many calls for fifty layers as for one.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from tersify.methods.shape_runs import ShapeRuns
from tersify.methods.strided_tensors import StridedTensors, is_channels_last

LARGE = 1 << 14  # numbers in a tensor that a core's nearest cache does not hold

Made = TypeVar("Made")


class Remembered(NamedTuple):
    """A value computed from tensors, with their versions and addresses at that time."""

    sources: Sequence[Tensor]
    stamps: list[tuple[int, int]]
    made: Any

    def holds_for(
        self, sources: Sequence[Tensor], stamps: list[tuple[int, int]]
    ) -> bool:
        # By identity: comparing tensors would compare their numbers.
        return stamps == self.stamps and all(map(operator.is_, sources, self.sources))


class Learned(NamedTuple):
    """Parameters in one vector, one (or none) for each tensor, and how a gradient of
    the vector falls apart.
    """

    vector: Tensor
    parameters: Sequence[nn.Parameter | None]
    split: Callable[[Tensor], Sequence[Tensor]]


class Prepared(NamedTuple):
    """All weights of a method that learns, with its own backward pass: half of the
    calls that torch would record.

    The latents get the gradient as it comes, or times `gain`; what is learned gets
    `gradient` of it.
    """

    value: Tensor
    gain: Tensor | None
    # of the weights → of the vector that `FlatWeights.learn` gave
    gradient: Callable[[Tensor], Tensor]


class FlatWeights:
    """The tensors that enter a method's transforms, as one vector `values`.

    Each tensor lies in the order of its own memory, so that a convolution in
    channels-last layout gets its weight in that layout. Statistics are those of torch's
    own reductions of each tensor, to the bit on a CPU.
    """

    def __init__(
        self, tensors: Sequence[Tensor], constants: dict[str, Any] | None = None
    ) -> None:
        self.tensors = tensors
        self._constants = {} if constants is None else constants
        self._layout = self._known_layout()
        self.values = self.flatten(tensors)
        self.learned: list[Learned] = []
        self._learned_lists = 0

    def _known_layout(self) -> ShapeRuns | StridedTensors:
        """The layout of the last step, unless the network has changed its own since."""
        strides = [t.stride() for t in self.tensors]
        known = self._constants.get("layout")
        if known is None or known[0] != strides:
            known = self._constants["layout"] = strides, _layout_of(self.tensors)
        return known[1]

    def flatten(self, tensors: Sequence[Tensor]) -> Tensor:
        """Tensors of the same shapes as one vector, in the same order."""
        return self._layout.flatten(tensors)

    def pieces(self, flat: Tensor) -> list[Tensor]:
        """The vector's parts in the shapes and layouts of the tensors."""
        return self._layout.pieces(flat)

    def learn(self, parameters: Sequence[nn.Parameter]) -> Tensor:
        """A parameter of each tensor, all as one vector through which their gradients
        go back to them.
        """
        self._learned_lists += 1
        shapes = self._shapes_of(f"learned {self._learned_lists}", parameters)
        with torch.no_grad():
            vector = shapes.flatten(parameters)
        return self._learn(Learned(vector, parameters, shapes.pieces))

    def _shapes_of(self, what: str, tensors: Sequence[Tensor]) -> ShapeRuns:
        return self.remembered(f"shapes of {what}", (), lambda: ShapeRuns(tensors))

    def learn_scores(self, scores: Sequence[nn.Parameter | None]) -> Tensor:
        """The same for parameters of the tensors' own shapes; zeros stand where a
        tensor has none.
        """
        each = zip(scores, self.tensors, strict=True)
        with torch.no_grad():
            vector = self.flatten(
                [torch.zeros_like(t) if score is None else score for score, t in each]
            )
        return self._learn(Learned(vector, scores, self.pieces))

    def learn_lines(self, lines: Sequence[nn.Parameter | None], dim: int) -> Tensor:
        """Parameters with one number for each index of a dimension, as a vector that is
        zero and brings gradients.
        """

        def split(flat: Tensor) -> Sequence[Tensor]:
            each = self.pieces(flat)
            return [
                p.sum([at for at in range(p.ndim) if at != dim], keepdim=True)
                if p.ndim > 1
                else p
                for p in each
            ]

        return self._learn(Learned(torch.zeros_like(self.values), lines, split))

    def _learn(self, learned: Learned) -> Tensor:
        # Frozen levels (learn = false) stay constants, so torch records nothing for
        # them.
        if any(p is not None and p.requires_grad for p in learned.parameters):
            learned.vector.requires_grad_()
            self.learned.append(learned)
        return learned.vector

    @property
    def sizes(self) -> list[int]:
        return [t.numel() for t in self.tensors]

    @property
    def rows(self) -> list[int]:
        """The output channels of each tensor."""
        return [len(t) for t in self.tensors]

    def norms(self, flat: Tensor, order: float, *, per_channel: bool = False) -> Tensor:
        """One norm for each tensor, or for each output channel of all of them."""
        # A maximum does not depend on the order of its operands, so equal sizes may
        # share one call.
        if order == torch.inf:
            runs = self.runs(per_channel=per_channel)
            parts = flat.split([size * count for size, count in runs])
            each = zip(parts, runs, strict=True)
            # Not `vector_norm`, which takes several times as long for a maximum.
            return torch.cat(
                [part.view(count, -1).abs().amax(1) for part, (_, count) in each]
            )
        # a sum's last bit depends on how it is added up, so each tensor by itself
        if per_channel:
            parts = zip(flat.split(self.sizes), self.rows, strict=True)
            return torch.cat(
                [
                    torch.linalg.vector_norm(p.view(rows, -1), order, 1)
                    for p, rows in parts
                ]
            )
        return torch.stack(torch._foreach_norm(flat.split(self.sizes), order))

    def runs(self, *, per_channel: bool = False) -> list[tuple[int, int]]:
        """The number of weights of each tensor (or output channel), with how many of
        that size follow each other.
        """
        name = "runs of channels" if per_channel else "runs of tensors"
        runs = groupby(self.counts(per_channel))
        return self.remembered(
            name, (), lambda: [(size, len(list(same))) for size, same in runs]
        )

    def spread(self, numbers: Tensor, *, per_channel: bool = False) -> Tensor:
        """One number for each tensor (or output channel) → one for each weight."""
        owners = self.owners(per_channel=per_channel)
        # Plain indexing where nobody differentiates: a Function of its own takes longer
        # on the host.
        if not numbers.requires_grad:
            return numbers.index_select(0, owners)
        return _Spread.apply(numbers, owners, self.members(per_channel=per_channel))

    def sums(self, *vectors: Tensor, per_channel: bool = False) -> Tensor:
        """The sums over each tensor's (or output channel's) weights: a row for each of
        them, a column for each vector.
        """
        members, count = self.members(per_channel=per_channel), len(vectors)
        if count == 1:
            return _segment_sums(vectors[0], members)[:, None]
        # Vectors end to end are summed faster than the columns of a matrix.
        whose = "channels" if per_channel else "tensors"
        lengths = self.constant(
            f"members of {whose} for {count} vectors", lambda: members.repeat(count)
        )
        return _segment_sums(torch.cat(vectors), lengths).view(count, -1).t()

    def members(self, *, per_channel: bool = False) -> Tensor:
        """How many weights share each number that is spread."""
        name = "members of a channel" if per_channel else "members of a tensor"
        return self.constant(name, lambda: torch.tensor(self.counts(per_channel)))

    def owners(self, *, per_channel: bool = False) -> Tensor:
        """For each weight the index of its tensor, or of its output channel among all
        of them.
        """

        def numbered() -> Tensor:
            # int32 indices: half of the memory traffic, and MOST_PREPARED bounds the
            # number of weights far below 2^31.
            counts = torch.tensor(self.counts(per_channel))
            return torch.arange(len(counts), dtype=torch.int32).repeat_interleave(
                counts
            )

        return self.constant("channels" if per_channel else "tensors", numbered)

    def counts(self, per_channel: bool) -> list[int]:
        """How many weights each tensor (or output channel) has, as Python integers: no
        transfer from the device is needed.
        """
        if not per_channel:
            return self.sizes
        return [
            size // rows
            for size, rows in zip(self.sizes, self.rows, strict=True)
            for _ in range(rows)
        ]

    def constant(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        """What stays the same from step to step, made once."""
        found = self._constants.get(name)
        if found is None or found.device != self.values.device:
            found = self._constants[name] = make().to(self.values.device)
        return found

    def remembered(
        self, name: str, sources: Sequence[Tensor], make: Callable[[], Made]
    ) -> Made:
        """What is made of `sources` and of nothing else: made again only after one of
        them has changed.

        Torch counts the edits of a tensor in place; what a replayed CUDA graph writes
        it does not count.
        """
        # The version counts edits in place; the pointer sees storage that was put
        # elsewhere, as by `module.to`.
        stamps = [(tensor._version, tensor.data_ptr()) for tensor in sources]
        found = self._constants.get(name)
        if found is None or not found.holds_for(sources, stamps):
            found = self._constants[name] = Remembered(sources, stamps, make())
        return found.made


class _Spread(torch.autograd.Function):
    """Numbers to all that share them, and backward the sums of their gradients."""

    @staticmethod
    def forward(ctx: Any, numbers: Tensor, owners: Tensor, members: Tensor) -> Tensor:
        ctx.members = members
        return numbers.index_select(0, owners)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _segment_sums(gradient, ctx.members), None, None


def _segment_sums(numbers: Tensor, members: Tensor) -> Tensor:
    """Each part summed up by itself: a scattered sum differs from run to run on a GPU.

    In double precision, since the sum of a segment goes from its first element to its
    last.
    """
    return torch.segment_reduce(
        numbers.double(), "sum", lengths=members, unsafe=True
    ).to(numbers.dtype)


def clip_(tensors: list[Tensor]) -> None:
    """Pull every number into [-1, 1]."""
    if tensors[0].is_cpu and sum(t.numel() for t in tensors) > LARGE * len(tensors):
        # where launches cost little, a second pass through memory does not
        for tensor in tensors:
            tensor.clamp_(-1.0, 1.0)
        return
    torch._foreach_clamp_min_(tensors, -1.0)
    torch._foreach_clamp_max_(tensors, 1.0)


def signs_beyond(values: Tensor, limit: Tensor) -> Tensor:
    """sign(x) where |x| > limit, else 0, without a choice, which takes several times as
    long as arithmetic.

    A quotient of a half is rounded to the even zero, and with it the limit itself. A
    limit of zero parts zero from the rest by the smallest normal number.
    """
    return (
        (values / (2 * limit).clamp(min=torch.finfo(values.dtype).tiny))
        .round_()
        .sign_()
    )


def _layout_of(tensors: Sequence[Tensor]) -> ShapeRuns | StridedTensors:
    """Channels-last tensors need their strides; for others shapes are enough."""
    if any(is_channels_last(t) for t in tensors):
        return StridedTensors(tensors)
    return ShapeRuns(tensors)
