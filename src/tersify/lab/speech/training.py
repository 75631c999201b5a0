"""Training of the speech network on mixtures drawn anew for every epoch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from tersify.lab.networks.speech import FLOOR, FRAMES, SpeechMlp
from tersify.lab.speech.mixtures import Corpus, Mixture
from tersify.lab.speech.spectrum import Framing, stft


@dataclass(frozen=True, kw_only=True)
class SpeechTraining:
    """Adam with a cosine rate; weights clamped to (−1, 1) as in the paper, so that no
    integer bits are needed.
    """

    epochs: int = 20
    batch: int = 512
    lr: float = 2e-3
    seed: int = 1
    framing: Framing = field(default_factory=Framing)

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch < 1:
            raise ValueError(
                f"epochs and batch must be at least 1, got {self.epochs} and {self.batch}"
            )


class Frames:
    """The magnitudes of many utterances in one array, from which any frame can be taken
    with the seven before it.
    """

    def __init__(self, mixtures: list[Mixture], framing: Framing) -> None:
        noisy, clean, ends = [], [], []
        for mixture in mixtures:
            noisy_part = stft(mixture.noisy, framing).abs()
            noisy += [noisy_part[:1].expand(FRAMES - 1, -1), noisy_part]
            clean_part = stft(mixture.clean, framing).abs()
            clean += [clean_part[:1].expand(FRAMES - 1, -1), clean_part]
            ends += [
                torch.zeros(FRAMES - 1, dtype=torch.bool),
                torch.ones(len(noisy_part), dtype=torch.bool),
            ]
        self.noisy, self.clean = torch.cat(noisy), torch.cat(clean)
        self.last = torch.cat(ends).nonzero().squeeze(1)

    def __len__(self) -> int:
        return len(self.last)

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        last = self.last[index]
        # (batch, 8, 129) and (batch, 129): each frame with the seven before it. The
        # padding in front of an utterance keeps them from reaching into the one before.
        return self.noisy[last[:, None] + torch.arange(1 - FRAMES, 1)], self.clean[last]


def gain_loss(estimate: Tensor, noisy: Tensor, clean: Tensor) -> Tensor:
    """Mean squared error of estimate / noisy against the best gain up to 1, so that
    quiet bins count like loud ones.
    """
    level = noisy.clamp(min=FLOOR)
    return (estimate / level - (clean / level).clamp(max=1.0)).square().mean()


def spectral_loss(estimate: Tensor, noisy: Tensor, clean: Tensor) -> Tensor:
    """Mean squared error of the roots of the magnitudes, plus a tenth of the same
    relative to the mixture's level.
    """
    level = noisy.clamp(min=FLOOR)
    wrong = (estimate.sqrt() - clean.sqrt()).square().mean()
    relative = (
        ((estimate / level).sqrt() - (clean / level).clamp(max=1.0).sqrt())
        .square()
        .mean()
    )
    return wrong + 0.1 * relative


def magnitude_loss(estimate: Tensor, noisy: Tensor, clean: Tensor) -> Tensor:
    """The same of magnitudes that a ReLU may have set to zero, where a root has no
    slope: none is below the floor.
    """
    return spectral_loss(estimate + FLOOR**2, noisy, clean)


LOSSES = {"mask": gain_loss, "spectrum": spectral_loss, "magnitude": magnitude_loss}


def train(
    model: SpeechMlp,
    corpus: Corpus,
    settings: SpeechTraining,
    tell: Callable[[str], None] = lambda line: None,
) -> SpeechMlp:
    """Train in place and return the model in eval mode; the same start and seed give
    the same network.
    """
    torch.manual_seed(settings.seed)
    loss_of = LOSSES[model.head]
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.lr)
    schedule: torch.optim.lr_scheduler.LRScheduler | None = None
    for epoch in range(settings.epochs):
        frames = Frames(
            list(corpus.drawn("train", epoch, settings.seed)), settings.framing
        )
        steps = len(frames) // settings.batch
        if not steps:
            raise ValueError(
                f"the training split has {len(frames)} frames, fewer than a batch of {settings.batch}"
            )
        if schedule is None:
            model.standardise_(frames.noisy)
            # Epochs differ by no frame: the speech files are the same in each.
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
                optimizer, settings.epochs * steps
            )
        model.train()
        total = 0.0
        for index in torch.randperm(len(frames))[: steps * settings.batch].split(
            settings.batch
        ):
            noisy, clean = frames.batch(index)
            loss = loss_of(model(noisy), noisy[:, -1], clean)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            clamp_(model)
            total += float(loss.detach())
        tell(f"epoch {epoch + 1}/{settings.epochs}: loss {total / steps:.5f}")
    return model.eval()


@torch.no_grad()
def clamp_(model: nn.Module) -> None:
    """Weights and biases into the range of 8-bit fixed point without integer bits
    (paper 2, section 4).
    """
    for parameter in model.parameters():
        # The 8-bit integers −128…127 over 128.
        parameter.clamp_(-1, 127 / 128)
