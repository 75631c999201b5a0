"""Many MiniLM encoders trained as one, for a GPU: every network is a slice of the same
tensors.

One batched product serves all of them. Each setting is trained once for every fold of
the training sentences, and a network never sees its fold: that is where it is measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from tersify.lab.networks.minilm import NORM_EPSILON, minilm

HEADS, DROPOUT, SPARSITY, BATCH, FOLDS = 12, 0.1, 0.85, 32, 5
BETAS, EPSILON, HEAT = (0.9, 0.999), 1e-8, 2.0
BISECTIONS = 24


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How a network is trained; `gain` and `lines` are the scores' speeds as multiples
    of `lr`, as in `Prune`.
    """

    kind: str
    lr: float
    gain: float = 0.0
    lines: float = 0.0
    head_start: float = 0.0
    scope: str = "layer"
    floor: float = 0.0
    begin: float = 0.1
    end: float = 0.7
    every: int = 10
    teacher: float = 0.0

    @property
    def name(self) -> str:
        facts = [
            f"{key} {value:g}"
            for key, value in asdict(self).items()
            if not isinstance(value, str) and value
        ]
        return " ".join([self.kind, self.scope, *facts])


class Sentences:
    """The training sentences, and which of them the network of each fold trains on."""

    def __init__(self, tokens: Tensor, labels: Tensor, folds: Sequence[int]) -> None:
        self.tokens, self.labels, self.folds = tokens, labels, tuple(folds)
        at = torch.arange(len(labels))
        inside, outside = (
            [at[(at % FOLDS == fold) == held] for fold in folds]
            for held in (False, True)
        )
        fewest = min(len(each) for each in outside)
        self.held_out = torch.stack([each[:fewest] for each in outside]).to(
            tokens.device
        )
        self._inside, self.lengths = inside, (tokens != 0).sum(1).cpu()
        self.steps = len(self.batches(0))

    def batches(self, epoch: int) -> list[Tensor]:
        """(folds, batch) each; sentences of about equal length together: padding costs
        as much as words.
        """
        found = []
        for fold, inside in zip(self.folds, self._inside, strict=True):
            generator = torch.Generator().manual_seed(1000 * fold + epoch)
            parts = []
            for part in inside[torch.randperm(len(inside), generator=generator)].split(
                BATCH * 8
            ):
                part = part[self.lengths[part].argsort()]
                parts += [one for one in part.split(BATCH) if len(one) == BATCH]
            found.append(parts)
        count = min(len(parts) for parts in found)
        order = torch.randperm(
            count, generator=torch.Generator().manual_seed(epoch)
        ).tolist()
        return [torch.stack([parts[i] for parts in found]) for i in order]


class Stack:
    """Encoders of one shape, for each setting one a fold. Weights lie as (networks,
    out, in); embeddings are shared.
    """

    def __init__(
        self, settings: int, folds: Sequence[int], file: Path, layers: int, device: str
    ) -> None:
        self.settings, self.k, self.layers, self.device = (
            settings,
            settings * len(folds),
            layers,
            device,
        )
        self.dtype = torch.bfloat16
        self.embeddings: dict[str, Tensor] = {}
        self.state: dict[str, Tensor] = {}
        self.pruned: list[str] = []
        fresh = []
        for fold in folds:
            torch.manual_seed(fold + 1)
            fresh.append(minilm(layers=layers).state_dict())
        stored = load_file(file)
        for name, value in fresh[0].items():
            if name.startswith("embeddings"):
                if value.is_floating_point():
                    self.embeddings[name.removeprefix("embeddings.")] = stored[name].to(
                        device, torch.float32
                    )
                continue
            each = torch.stack(
                [stored[name].float() if name in stored else own[name] for own in fresh]
            )
            self.state[name] = each.repeat(settings, *[1] * value.ndim).to(device)
            if name.startswith("encoder") and value.ndim == 2:
                self.pruned.append(name)
        self.mask = {
            name: torch.ones_like(self.state[name], dtype=torch.bool)
            for name in self.pruned
        }
        self.used: dict[str, Tensor] = {}

    def use(self) -> None:
        """What the next product takes: masked, in half precision, ready to receive a
        gradient.
        """
        for name, value in self.state.items():
            masked = value * self.mask[name] if name in self.mask else value.clone()
            self.used[name] = masked.to(
                self.dtype if value.ndim == 3 else torch.float32
            ).requires_grad_()

    def for_each_setting(self, value: Tensor) -> Tensor:
        """What lies there for each fold, for each network."""
        return value.repeat(self.settings, *[1] * (value.ndim - 1))

    def _linear(self, x: Tensor, name: str) -> Tensor:
        bias = self.used[f"{name}.bias"].to(x.dtype)
        return torch.baddbmm(
            bias[:, None], x, self.used[f"{name}.weight"].transpose(1, 2)
        )

    def _norm(self, x: Tensor, name: str) -> Tensor:
        weight, bias = (
            self.used[f"{name}.{part}"][:, None].to(x.dtype)
            for part in ("weight", "bias")
        )
        return torch.addcmul(
            bias, F.layer_norm(x, x.shape[-1:], eps=NORM_EPSILON), weight
        )

    def _words(self, tokens: Tensor) -> Tensor:
        e = self.embeddings
        x = (
            e["word_embeddings.weight"][tokens]
            + e["position_embeddings.weight"][: tokens.shape[-1]]
        )
        x = x + e["token_type_embeddings.weight"][0]
        return F.layer_norm(
            x, x.shape[-1:], e["LayerNorm.weight"], e["LayerNorm.bias"], NORM_EPSILON
        )

    def logits(self, tokens: Tensor, dropout: float = 0.0) -> Tensor:
        """(folds, N, T) → (networks, N, 2)."""
        _, n, length = tokens.shape
        drop = (lambda x: F.dropout(x, dropout)) if dropout else (lambda x: x)
        x = drop(
            self.for_each_setting(self._words(tokens).to(self.dtype).flatten(1, 2))
        )
        real = tokens != 0
        seen = (
            real.view(-1, 1, 1, length)
            .expand(-1, 1, length, length)
            .repeat(self.settings, 1, 1, 1)
        )
        for index in range(self.layers):
            at = f"encoder.layer.{index}."
            q, k, v = (
                self._linear(x, f"{at}attention.self.{part}")
                .view(self.k * n, length, HEADS, -1)
                .transpose(1, 2)
                for part in ("query", "key", "value")
            )
            mixed = F.scaled_dot_product_attention(
                q, k, v, attn_mask=seen, dropout_p=dropout
            )
            mixed = mixed.transpose(1, 2).reshape(self.k, n * length, -1)
            x = self._norm(
                drop(self._linear(mixed, f"{at}attention.output.dense")) + x,
                f"{at}attention.output.LayerNorm",
            )
            wide = F.gelu(self._linear(x, f"{at}intermediate.dense"))
            x = self._norm(
                drop(self._linear(wide, f"{at}output.dense")) + x,
                f"{at}output.LayerNorm",
            )
        fraction = self.for_each_setting(
            real.float() / real.sum(2, keepdim=True).clamp(min=1)
        )
        mean = (
            (x.view(self.k, n, length, -1) * fraction[..., None]).sum(2).to(self.dtype)
        )
        pooled = drop(torch.tanh(self._linear(mean, "pooler.dense")))
        return self._linear(pooled, "classifier").float()

    @torch.no_grad()
    def answers(self, tokens: Tensor) -> Tensor:
        """(folds, N, T) → (networks, N, 2), in any number."""
        self.use()
        folds = tokens.shape[0]
        order = (tokens != 0).sum(2).argsort(1)
        found = torch.zeros(
            self.settings, folds, tokens.shape[1], 2, device=tokens.device
        )
        for part in order.split(128, 1):
            each = cut(
                tokens.gather(1, part[..., None].expand(-1, -1, tokens.shape[2]))
            )
            wide = part[None, :, :, None].expand(self.settings, -1, -1, 2)
            found.scatter_(2, wide, self.logits(each).view_as(wide))
        return found.flatten(0, 1)


def cut(tokens: Tensor) -> Tensor:
    return tokens[..., : int((tokens != 0).sum(-1).max())]


def adam_(
    value: Tensor,
    gradient: Tensor,
    mask: Tensor | None,
    first: Tensor,
    second: Tensor,
    rate: Tensor,
    step: Tensor,
) -> None:
    """One step of Adam; `rate` has one row for each network. Where the mask is false
    there is no gradient.
    """
    gradient = gradient.float() if mask is None else gradient.float() * mask
    first.lerp_(gradient, 1 - BETAS[0])
    second.lerp_(gradient * gradient, 1 - BETAS[1])
    scale = (second / (1 - BETAS[1] ** step)).sqrt() + EPSILON
    value.sub_(rate * (first / (1 - BETAS[0] ** step)) / scale)


def limits(
    worth: Sequence[Tensor], fraction: Tensor, together: Tensor, floor: Tensor
) -> Tensor:
    """(networks, layers): a weight goes if its worth is no more than this. By
    bisection, for all networks at once.

    The worth lies as (networks, layers, weights), layers of one size together. `share`
    of each layer's weights go or, where `together` is true, of all layers' that
    compete; each layer then keeps its best `floor` share, and its best weight in any
    case (as `Prune` with scope 'global').
    """
    sizes = torch.cat(
        [
            torch.full(one.shape[1:2], one.shape[2], device=fraction.device)
            for one in worth
        ]
    )
    low, high = (
        torch.cat(list(ends), 1)
        for ends in zip(*(one.aminmax(dim=2) for one in worth), strict=True)
    )

    def bisected(
        low: Tensor, high: Tensor, wanted: Tensor, cap: Tensor | None
    ) -> Tensor:
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            at = (middle if cap is None else torch.minimum(middle, cap)).split(
                [one.shape[1] for one in worth], 1
            )
            gone = torch.cat(
                [
                    (one <= limit[..., None]).sum(2)
                    for one, limit in zip(worth, at, strict=True)
                ],
                1,
            )
            if cap is not None:
                gone = torch.where(together[:, None], gone.sum(1, keepdim=True), gone)
            fewer = gone <= wanted
            low, high = (
                torch.where(fewer, middle, low),
                torch.where(fewer, high, middle),
            )
        return low

    if not together.any():
        return bisected(low, high, fraction[:, None] * sizes, None)
    cap = bisected(
        low,
        high,
        sizes - torch.maximum((floor[:, None] * sizes).ceil(), torch.ones_like(sizes)),
        None,
    )
    cap = torch.where(together[:, None], cap, high)
    low = torch.where(together[:, None], low.amin(1, keepdim=True), low)
    high = torch.where(together[:, None], high.amax(1, keepdim=True), high)
    wanted = fraction[:, None] * torch.where(together[:, None], sizes.sum(), sizes)
    return torch.minimum(bisected(low, high, wanted, cap), cap)


class Trainer:
    """Trains a stack. The settings of movement come first: only their networks have
    scores.
    """

    def __init__(
        self, each: Sequence[Setting], stack: Stack, data: Sentences, epochs: int
    ) -> None:
        assert [s.kind == "movement" for s in each] == sorted(
            (s.kind == "movement" for s in each), reverse=True
        )
        self.stack, self.data, self.epochs = stack, data, epochs

        def column(values: Sequence[float]) -> Tensor:
            return torch.tensor(values, device=stack.device).repeat_interleave(
                len(data.folds)
            )

        self.lr, self.teacher, self.floor = (
            column([getattr(s, n) for s in each]) for n in ("lr", "teacher", "floor")
        )
        self.paces = [(s.begin, s.end, s.every) for s in each]
        self.together = column([s.scope == "global" for s in each])
        self.moments = {
            n: (torch.zeros_like(v), torch.zeros_like(v))
            for n, v in stack.state.items()
        }
        movers = [s for s in each if s.kind == "movement"]
        self.moving = len(movers) * len(data.folds)
        # Each weight's score, and one for each row and each column, which add up to
        # what a weight is worth.
        self.speeds = [
            column([s.gain * s.lr for s in movers]),
            *[column([s.lines * s.lr for s in movers])] * 2,
        ]
        self.scores: dict[str, list[Tensor]] = {}
        for n in stack.pruned if movers else ():
            start = (
                column([s.head_start for s in movers]).view(-1, 1, 1)
                * stack.state[n][: self.moving].abs()
            )
            self.scores[n] = [
                start,
                torch.zeros_like(start[:, :, :1]),
                torch.zeros_like(start[:, :1]),
            ]
        self.score_moments = {
            n: [(torch.zeros_like(s), torch.zeros_like(s)) for s in scores]
            for n, scores in self.scores.items()
        }
        self.adam = (
            torch.compile(adam_, dynamic=True) if stack.device == "cuda" else adam_
        )

    def run(
        self, warmup: float, teacher: Tensor | None = None, *, prune: bool = True
    ) -> None:
        """`teacher`: the answers to learn from, (folds, all sentences, 2)."""
        total, at = self.epochs * self.data.steps, 0
        for epoch in range(self.epochs):
            for chosen in self.data.batches(epoch):
                if prune:
                    self._choose(at, total)
                along = at / self.data.steps
                factor = (
                    along / warmup
                    if along < warmup
                    else 0.5
                    * (
                        1
                        + math.cos(math.pi * (along - warmup) / (self.epochs - warmup))
                    )
                )
                self._step(chosen, factor, at + 1, teacher)
                at += 1
            print(
                f"{self.stack.k} networks: {epoch + 1} of {self.epochs} epochs",
                flush=True,
            )

    def _choose(self, at: int, total: int) -> None:
        fractions, due = [], []
        for begin, end, every in self.paces:
            first, last = math.ceil(begin * total - 1e-9), math.ceil(end * total - 1e-9)
            due.append(
                first <= at <= last and ((at - first) % every == 0 or at == last)
            )
            along = (
                1.0
                if at >= last
                else min(max((at / total - begin) / (end - begin), 0.0), 1.0)
            )
            fractions.append(SPARSITY * (1 - (1 - along) ** 3))
        if not any(due):
            return
        folds = len(self.data.folds)
        fraction = torch.tensor(fractions, device=self.stack.device).repeat_interleave(
            folds
        )
        at_hand = (
            torch.tensor(due, device=self.stack.device)
            .repeat_interleave(folds)
            .nonzero()[:, 0]
        )
        moving = at_hand[at_hand < self.moving]
        alike: dict[torch.Size, list[str]] = {}
        for name in self.stack.pruned:
            alike.setdefault(self.stack.state[name].shape, []).append(name)
        worth = [
            torch.stack([self._worth(n, at_hand, moving).flatten(1) for n in names], 1)
            for names in alike.values()
        ]
        found = limits(
            worth, fraction[at_hand], self.together[at_hand], self.floor[at_hand]
        )
        spans = found.split([len(names) for names in alike.values()], 1)
        for names, one, limit in zip(alike.values(), worth, spans, strict=True):
            for name, kept in zip(
                names, (one > limit[..., None]).unbind(1), strict=True
            ):
                mask = self.stack.mask[name]
                mask[at_hand] = kept.view(-1, *mask.shape[1:])

    def _worth(self, name: str, networks: Tensor, moving: Tensor) -> Tensor:
        worth = self.stack.state[name][networks].abs()
        if len(moving):
            weight, row, column = (score[moving] for score in self.scores[name])
            worth[: len(moving)] = weight + row + column
        return worth

    def _step(
        self, chosen: Tensor, factor: float, step: int, teacher: Tensor | None
    ) -> None:
        # known here, so that nobody waits for the GPU to tell
        longest = int(self.data.lengths[chosen].max())
        chosen = chosen.to(self.stack.device, non_blocking=True)
        self.stack.use()
        logits = self.stack.logits(self.data.tokens[chosen][..., :longest], DROPOUT)
        labels = self.stack.for_each_setting(self.data.labels[chosen])
        loss = (
            F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
            .view_as(labels)
            .mean(1)
        )
        if teacher is not None:
            wanted = teacher.gather(1, chosen[..., None].expand(-1, -1, 2))
            wanted = self.stack.for_each_setting(F.log_softmax(wanted / HEAT, -1))
            given = F.log_softmax(logits / HEAT, -1)
            distance = (
                F.kl_div(given, wanted, reduction="none", log_target=True)
                .sum(-1)
                .mean(1)
                * HEAT**2
            )
            loss = (1 - self.teacher) * loss + self.teacher * distance
        loss.sum().backward()
        count = torch.tensor(float(step), device=self.stack.device)
        for name, value in self.stack.state.items():
            gradient = self.stack.used[name].grad
            if gradient is None:
                continue
            if name in self.scores:
                pull = gradient[: self.moving] * value[: self.moving]
                pulls = (pull, pull.sum(2, keepdim=True), pull.sum(1, keepdim=True))
                for which, (score, one) in enumerate(
                    zip(self.scores[name], pulls, strict=True)
                ):
                    self._adam(
                        score,
                        one,
                        None,
                        self.score_moments[name][which],
                        factor * self.speeds[which],
                        count,
                    )
            self._adam(
                value,
                gradient,
                self.stack.mask.get(name),
                self.moments[name],
                factor * self.lr,
                count,
            )

    def _adam(
        self,
        value: Tensor,
        gradient: Tensor,
        mask: Tensor | None,
        moments: tuple[Tensor, Tensor],
        rate: Tensor,
        step: Tensor,
    ) -> None:
        """Everything as (networks, numbers), so that one compiled function fits all."""
        value, gradient, first, second = (
            one.view(len(rate), -1) for one in (value, gradient.contiguous(), *moments)
        )
        mask = None if mask is None else mask.view(len(rate), -1)
        self.adam(value, gradient, mask, first, second, rate[:, None], step)
