"""Which learning rate and score suit movement and magnitude pruning of MiniLM: many networks trained as one, for a GPU.

    python benchmarks/movement_settings.py --data-root data --json settings.json [--quick]

Every setting with every seed is a slice of the same tensors, so that one batched product serves all networks.
A fifth of the training sentences is held out and measured; the test set is never looked at. The winner of each
method belongs into `recipes/movement-85.toml` and the experiment `sparse-bert`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from tersify.lab import dataset
from tersify.lab.networks.minilm import NORM_EPSILON, minilm

HEADS, DROPOUT, SPARSITY = 12, 0.1, 0.85
END, EVERY = 0.7, 10
BETAS, EPSILON = (0.9, 0.999), 1e-8


@dataclass(frozen=True)
class Setting:
    """How one network is trained; `gain` and `lines` are the scores' speeds, as multiples of `lr`."""

    kind: str
    lr: float
    gain: float = 0.0
    lines: float = 0.0
    head_start: float = 0.0
    begin: float = 0.1
    teacher: float = 0.0
    seed: int = 1

    @property
    def name(self) -> str:
        facts = asdict(self)
        kept = {key: facts[key] for key in ("lr", "gain", "lines", "head_start", "begin", "teacher") if facts[key]}
        return " ".join([self.kind, *(f"{key} {value:g}" for key, value in kept.items())])


def settings(seeds: list[int]) -> list[Setting]:
    each = []
    for lr, teacher in itertools.product((1e-4, 2e-4, 4e-4), (0.0, 0.7)):
        each.append(Setting("magnitude", lr, teacher=teacher))
        for gain, lines in ((3.0, 0.0), (1.0, 0.3), (1.0, 1.0)):
            each.append(Setting("movement", lr, gain, lines, 1.0, teacher=teacher))
    each += [Setting("magnitude", lr, teacher=teacher) for lr in (5e-5, 8e-4) for teacher in (0.0, 0.7)]
    each += [Setting("movement", lr, 1.0, 3.0, 1.0, teacher=0.7) for lr in (1e-4, 2e-4)]
    each.append(Setting("movement", 5e-5, 10.0, 0.0, 1.0, teacher=0.7))
    each.append(Setting("movement", 1e-4, 1.0, 0.0, 0.0, 0.3, teacher=0.7))  # as published: scores begin at zero
    return [Setting(**(asdict(one) | {"seed": seed})) for one in each for seed in seeds]


class Stack:
    """K encoders of one shape. Weights lie as (K, out, in); the embeddings are frozen and shared by all."""

    def __init__(self, settings: list[Setting], file: Path, layers: int, device: str) -> None:
        self.k, self.layers, self.device, self.dtype = len(settings), layers, device, torch.bfloat16
        self.embeddings, self.state, self.pruned = {}, {}, []
        heads = {}
        for seed in {one.seed for one in settings}:
            torch.manual_seed(seed)
            heads[seed] = minilm(layers=layers).state_dict()
        stored = load_file(file)
        for name, fresh in next(iter(heads.values())).items():
            if name.startswith("embeddings"):
                self.embeddings[name] = stored[name].to(device, torch.float32) if fresh.is_floating_point() else None
                continue
            each = [stored[name].float() if name in stored else heads[one.seed][name] for one in settings]
            self.state[name] = torch.stack(each).to(device)
            if name.startswith("encoder") and fresh.ndim == 2:
                self.pruned.append(name)
        self.mask = {name: torch.ones_like(self.state[name], dtype=torch.bool) for name in self.pruned}
        self.used: dict[str, Tensor] = {}

    def use(self) -> None:
        """What the next product takes: masked, in half precision, ready to receive a gradient."""
        for name, value in self.state.items():
            masked = value * self.mask[name] if name in self.mask else value.clone()
            self.used[name] = masked.to(self.dtype if value.ndim == 3 else torch.float32).requires_grad_()

    def _linear(self, x: Tensor, name: str) -> Tensor:
        bias = self.used[f"{name}.bias"].to(x.dtype)
        return torch.baddbmm(bias[:, None], x, self.used[f"{name}.weight"].transpose(1, 2))

    def _norm(self, x: Tensor, name: str) -> Tensor:
        x = F.layer_norm(x.float(), x.shape[-1:], eps=NORM_EPSILON)
        return (x * self.used[f"{name}.weight"][:, None] + self.used[f"{name}.bias"][:, None]).to(self.dtype)

    def _words(self, tokens: Tensor) -> Tensor:
        e = {name.removeprefix("embeddings."): value for name, value in self.embeddings.items()}
        x = e["word_embeddings.weight"][tokens] + e["position_embeddings.weight"][: tokens.shape[1]]
        x = x + e["token_type_embeddings.weight"][0]
        return F.layer_norm(x, x.shape[-1:], e["LayerNorm.weight"], e["LayerNorm.bias"], NORM_EPSILON)

    def logits(self, tokens: Tensor, dropout: float = 0.0) -> Tensor:
        """(N, T) → (K, N, 2)."""
        n, length = tokens.shape
        drop = (lambda x: F.dropout(x, dropout)) if dropout else (lambda x: x)
        words = self._words(tokens).to(self.dtype).flatten(0, 1)
        x = drop(words.expand(self.k, -1, -1))
        real = tokens != 0
        seen = real[:, None, None, :].expand(n, 1, length, length).repeat(self.k, 1, 1, 1)
        for index in range(self.layers):
            at = f"encoder.layer.{index}."
            q, k, v = (
                self._linear(x, f"{at}attention.self.{part}").view(self.k * n, length, HEADS, -1).transpose(1, 2)
                for part in ("query", "key", "value")
            )
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, dropout_p=dropout)
            mixed = mixed.transpose(1, 2).reshape(self.k, n * length, -1)
            x = self._norm(
                drop(self._linear(mixed, f"{at}attention.output.dense")) + x, f"{at}attention.output.LayerNorm"
            )
            wide = F.gelu(self._linear(x, f"{at}intermediate.dense"))
            x = self._norm(drop(self._linear(wide, f"{at}output.dense")) + x, f"{at}output.LayerNorm")
        share = real.float() / real.sum(1, keepdim=True).clamp(min=1)
        mean = (x.view(self.k, n, length, -1) * share[None, :, :, None]).sum(2).to(self.dtype)
        pooled = drop(torch.tanh(self._linear(mean, "pooler.dense")))
        return self._linear(pooled, "classifier").float()


def adam_(value: Tensor, gradient: Tensor, first: Tensor, second: Tensor, rate: Tensor, step: Tensor) -> None:
    """One step of Adam; `rate` has one row for each network."""
    first.lerp_(gradient, 1 - BETAS[0])
    second.lerp_(gradient * gradient, 1 - BETAS[1])
    scale = (second / (1 - BETAS[1] ** step)).sqrt() + EPSILON
    value.sub_(rate * (first / (1 - BETAS[0] ** step)) / scale)


def keep_best_(mask: Tensor, scores: Tensor, share: Tensor) -> None:
    """The mask's `share` of lowest scores becomes false, for each network, by bisection."""
    flat = scores.flatten(1)
    low, high = flat.amin(1, keepdim=True), flat.amax(1, keepdim=True)
    wanted = share[:, None] * flat.shape[1]
    for _ in range(26):
        middle = (low + high) / 2
        fewer = (flat <= middle).sum(1, keepdim=True) <= wanted
        low, high = torch.where(fewer, middle, low), torch.where(fewer, high, middle)
    mask.copy_((flat > low).view_as(mask))


class Trainer:
    def __init__(self, each: list[Setting], stack: Stack, data: tuple[Tensor, Tensor], epochs: int, batch: int) -> None:
        self.each, self.stack, self.epochs, self.batch = each, stack, epochs, batch
        self.tokens, self.labels = data
        self.steps = len(self.labels) // batch
        column = lambda values: torch.tensor(values, device=stack.device)  # noqa: E731
        self.lr, self.teacher = column([s.lr for s in each]), column([s.teacher for s in each])
        self.begin = column([s.begin for s in each])
        self.moments = {n: (torch.zeros_like(v), torch.zeros_like(v)) for n, v in stack.state.items()}
        # Each weight's score, and one for each row and each column, which add up to what a weight is worth.
        self.moves = column([s.kind == "movement" for s in each])
        self.speeds = [column([s.gain * s.lr for s in each]), *[column([s.lines * s.lr for s in each])] * 2]
        self.scores: dict[str, list[Tensor]] = {}
        if any(s.kind == "movement" for s in each):
            head = column([s.head_start for s in each]).view(-1, 1, 1)
            for n in stack.pruned:
                start = head * stack.state[n].abs()
                self.scores[n] = [start, torch.zeros_like(start[:, :, :1]), torch.zeros_like(start[:, :1])]
        self.score_moments = {
            n: [(torch.zeros_like(s), torch.zeros_like(s)) for s in each] for n, each in self.scores.items()
        }
        self.adam = torch.compile(adam_) if stack.device == "cuda" else adam_

    def run(self, warmup: float, teacher: Tensor | None = None, prune: bool = True) -> None:
        total, at = self.epochs * self.steps, 0
        for epoch in range(self.epochs):
            for chosen in self._batches(epoch):
                if prune:
                    self._choose(at, total)
                along = at / self.steps
                factor = along / warmup if along < warmup else 0.5 * (
                    1 + math.cos(math.pi * (along - warmup) / (self.epochs - warmup)))  # fmt: skip
                self._step(chosen, factor, at + 1, teacher)
                at += 1

    def _batches(self, epoch: int) -> list[Tensor]:
        """Sentences of about equal length together: padding costs as much as words."""
        generator = torch.Generator().manual_seed(epoch)
        found: list[Tensor] = []
        for part in torch.randperm(len(self.labels), generator=generator).split(self.batch * 8):
            part = part[(self.tokens[part.to(self.tokens.device)] != 0).sum(1).argsort().cpu()]
            found += [one for one in part.split(self.batch) if len(one) == self.batch]
        order = torch.randperm(len(found), generator=generator).tolist()
        return [found[i] for i in order][: self.steps]

    def _choose(self, at: int, total: int) -> None:
        first, last = math.ceil(float(self.begin.min()) * total), math.ceil(END * total)
        if not first <= at <= last or ((at - first) % EVERY and at != last):
            return
        along = ((at / total - self.begin) / (END - self.begin)).clamp(0, 1) if at < last else torch.ones_like(self.lr)
        share = SPARSITY * (1 - (1 - along) ** 3)
        for name in self.stack.pruned:
            worth = self.stack.state[name].abs()
            if self.scores:
                weight, row, column = self.scores[name]
                worth = torch.where(self.moves.view(-1, 1, 1), weight + row + column, worth)
            keep_best_(self.stack.mask[name], worth, share)

    def _step(self, chosen: Tensor, factor: float, step: int, teacher: Tensor | None) -> None:
        chosen = chosen.to(self.tokens.device, non_blocking=True)
        self.stack.use()
        logits = self.stack.logits(cut(self.tokens[chosen]), DROPOUT)
        labels = self.labels[chosen].expand(self.stack.k, -1)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels).mean(1)
        if teacher is not None:
            heat = 2.0
            wanted = F.log_softmax(teacher[chosen] / heat, -1).expand_as(logits)
            given = F.log_softmax(logits / heat, -1)
            distance = F.kl_div(given, wanted, reduction="none", log_target=True).sum(-1).mean(1) * heat**2
            loss = (1 - self.teacher) * loss + self.teacher * distance
        loss.sum().backward()
        count = torch.tensor(float(step), device=self.stack.device)
        for name, value in self.stack.state.items():
            gradient = self.stack.used[name].grad
            if gradient is None:
                continue
            gradient = gradient.float()
            if name in self.scores:
                pull = gradient * value
                pulls = (pull, pull.sum(2, keepdim=True), pull.sum(1, keepdim=True))
                for which, (score, one) in enumerate(zip(self.scores[name], pulls, strict=True)):
                    self._adam(score, one, self.score_moments[name][which], factor * self.speeds[which], count)
            if name in self.stack.mask:
                gradient = gradient * self.stack.mask[name]
            self._adam(value, gradient, self.moments[name], factor * self.lr, count)

    def _adam(
        self, value: Tensor, gradient: Tensor, moments: tuple[Tensor, Tensor], rate: Tensor, step: Tensor
    ) -> None:
        """Everything as (K, numbers), so that one compiled function fits all."""
        flat = [one.view(self.stack.k, -1) for one in (value, gradient.contiguous(), *moments)]
        self.adam(*flat, rate[:, None], step)


def cut(tokens: Tensor) -> Tensor:
    return tokens[:, : int((tokens != 0).sum(1).max())]


@torch.no_grad()
def answers(stack: Stack, tokens: Tensor) -> Tensor:
    stack.use()
    order = (tokens != 0).sum(1).argsort()
    found = torch.zeros(stack.k, len(tokens), 2, device=tokens.device)
    for part in order.split(128):
        found[:, part] = stack.logits(cut(tokens[part]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, default=Path("data"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--quick", action="store_true", help="few sentences, one layer: shows that the path works")
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    train = dataset("polarity", root=given.data_root).train
    if given.quick:
        train, given.epochs, given.layers = train[:400], 2, 1
    held_out = torch.arange(len(train)) % 5 == 0
    inside, outside = train[~held_out], train[held_out]
    data = inside.images.to(device), inside.labels.to(device)
    check, wanted = outside.images.to(device), outside.labels.to(device)
    file = given.data_root / "minilm" / "model.safetensors"
    start = time.perf_counter()

    def accuracy(stack: Stack) -> list[tuple[float, float]]:
        found = answers(stack, check)
        hits = (found.argmax(-1) == wanted).float().mean(1) * 100
        losses = [F.cross_entropy(one, wanted).item() for one in found]
        return list(zip(hits.tolist(), losses, strict=True))

    each = [Setting("dense", lr, seed=1) for lr in (5e-5, 1e-4, 2e-4)]
    dense = Stack(each, file, given.layers, device)
    Trainer(each, dense, data, 3 if not given.quick else 1, 32).run(0.5, prune=False)
    rows = [(one, *found) for one, found in zip(each, accuracy(dense), strict=True)]
    best = max(range(len(each)), key=lambda i: rows[i][1])
    teacher = answers(dense, data[0])[best]
    print(f"dense networks after {time.perf_counter() - start:.0f} s", flush=True)
    each = settings(list(range(1, given.seeds + 1)))
    if given.quick:
        each = [each[0], each[2], each[4], each[-1]]
    stack = Stack(each, file, given.layers, device)
    Trainer(each, stack, data, given.epochs, 32).run(1.0, teacher)
    zeros = 1 - torch.stack([m.flatten(1).float().mean(1) for m in stack.mask.values()]).mean(0)
    rows += [(one, *found) for one, found in zip(each, accuracy(stack), strict=True)]
    means: dict[str, list[tuple[float, float]]] = {}
    for one, hit, loss in rows:
        means.setdefault(one.name, []).append((hit, loss))
    for name, found in sorted(means.items(), key=lambda item: -sum(h for h, _ in item[1]) / len(item[1])):
        shown = "  ".join(f"{hit:.2f} ({loss:.3f})" for hit, loss in found)
        print(f"{sum(h for h, _ in found) / len(found):6.2f}  {name:45} {shown}")
    print(f"zeros {zeros.min():.4f} to {zeros.max():.4f}; {time.perf_counter() - start:.0f} s")
    if given.json:
        figures = [asdict(one) | {"name": one.name, "accuracy": hit, "loss": loss} for one, hit, loss in rows]
        given.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
