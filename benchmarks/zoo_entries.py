"""The zoo: each network with real weights, what it sees and how its quality is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import llama_blocks
import networks_of_others as others
import torch
import torch.nn.functional as F
import zoo_data
from torch import Tensor, nn

import tersify
from tersify.lab import Augmentation, augment, dataset, network, normalize
from tersify.lab.stored_networks import load_weights

ROOT = Path(__file__).parent.parent
AUGMENTATION = Augmentation(crop_padding=4, flip=True)
# outputs, those of fp32, labels
Measure = Callable[[Tensor, Tensor, "Tensor | None"], float]


@dataclass(frozen=True, kw_only=True)
class Training:
    """Steps of Adam with a cosine; batch norms keep their statistics until the end.
    `even`: they take over what filters differ in size first.
    """

    steps: int
    lr: float
    batch: int
    even: bool = False


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A network with inputs to adjust to and others to be measured on; labels where
    there are any.
    """

    model: nn.Module
    shown: Tensor
    held: Tensor
    measure: Measure
    unit: str
    shown_labels: Tensor | None = None
    held_labels: Tensor | None = None
    int8: str = "static"  # what ONNX Runtime's documents advise for such a network
    weights: tuple[str, ...] = ("*",)  # the names that recipes take
    ready: bool = False  # its weights are compressed already
    # a batch to train on; else some of those shown
    draw: Callable[[int, torch.Generator], Tensor] | None = None
    # recipes that train here
    trained: Mapping[str, Training] = field(default_factory=dict)
    # the same network with what is shown and what is held exchanged: every input is
    # then judged by a network that never saw it
    turned: Callable[[], Subject] | None = None

    @property
    def decides(self) -> bool:
        """Whether its outputs are classes, of which the largest counts."""
        return self.measure in (accuracy, agreement)

    def batch(self, count: int, step: int) -> Tensor:
        generator = torch.Generator().manual_seed(1000 + step)
        if self.draw is not None:
            return self.draw(count, generator)
        return self.shown[torch.randint(len(self.shown), (count,), generator=generator)]


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where the data of development lies."""

    data: Path
    cifar: Path
    quick: bool

    def few(self, count: int) -> int:
        return count // 10 if self.quick else count


def accuracy(given: Tensor, fp32: Tensor, labels: Tensor | None) -> float:
    assert labels is not None
    return 100 * (given.argmax(1) == labels).double().mean().item()


def agreement(given: Tensor, fp32: Tensor, labels: Tensor | None) -> float:
    return 100 * (given.argmax(-1) == fp32.argmax(-1)).double().mean().item()


def same_pitch(given: Tensor, fp32: Tensor, labels: Tensor | None) -> float:
    """Half a semitone: bins are 20 cents apart. Only where fp32 hears a pitch."""
    heard = fp32.amax(1) > 0.5
    near = (given.argmax(1) - fp32.argmax(1)).abs() <= 2
    return 100 * near[heard].double().mean().item()


def same_decision(given: Tensor, fp32: Tensor, labels: Tensor | None) -> float:
    return 100 * ((given > 0.5) == (fp32 > 0.5)).double().mean().item()


def cosine(given: Tensor, fp32: Tensor, labels: Tensor | None) -> float:
    return 100 * F.cosine_similarity(given.flatten(1), fp32.flatten(1)).mean().item()


def cifar(places: Places, depth: int) -> Subject | None:
    weights = places.data / "weights" / f"cifar10_resnet{depth}.safetensors"
    if not weights.is_file() or not places.cifar.is_dir():
        return None
    data = dataset("cifar10", root=places.cifar)
    model = load_weights(network(f"resnet{depth}"), weights).eval()
    count = places.few(10000)

    def draw(images: int, generator: torch.Generator) -> Tensor:
        chosen = torch.randint(len(data.train), (images,), generator=generator)
        return normalize(
            augment(data.train.images[chosen], AUGMENTATION, generator), data
        )

    training = Training(steps=places.few(100), lr=1e-3, batch=128)
    return Subject(
        model=model,
        shown=normalize(data.train.images[:512], data),
        held=normalize(data.test.images[:count], data),
        measure=accuracy,
        unit="accuracy, %",
        shown_labels=data.train.labels[:512],
        held_labels=data.test.labels[:count],
        draw=draw,
        trained={"prune-l1-90": training, "twn": training} if depth == 20 else {},
    )


def star(places: Places) -> Subject | None:
    if not places.cifar.is_dir():
        return None
    data = dataset("cifar10", root=places.cifar)
    model = tersify.load(
        ROOT / "examples" / "resnet20-star.terse", into=network("resnet20-star")
    ).eval()
    count = places.few(2000)
    return Subject(
        model=model,
        shown=normalize(data.train.images[:64], data),
        held=normalize(data.test.images[:count], data),
        measure=accuracy,
        unit="accuracy, %",
        held_labels=data.test.labels[:count],
        ready=True,
    )


def speech(places: Places) -> Subject | None:
    model = tersify.load(
        ROOT / "examples" / "speech-mask.terse", into=network("speech-mlp")
    ).eval()
    window = torch.hann_window(128)
    found = []
    for wave in zoo_data.waves(places.data, "test", 2.0)[: places.few(40)]:
        magnitudes = (
            torch.stft(wave[::2], 256, 64, 128, window, return_complex=True).abs().T
        )
        found.append(magnitudes.unfold(0, 8, 8).transpose(1, 2))
    frames = torch.cat(found).contiguous()
    return Subject(
        model=model,
        shown=frames[:64],
        held=frames,
        measure=cosine,
        unit="cosine, %",
        ready=True,
    )


def efficientnet(places: Places) -> Subject | None:
    model = others.efficientnet_lite0()
    if model is None:
        return None
    # Channels last: a step of training takes a third of the time.
    model = model.to(memory_format=torch.channels_last)
    images, labels = zoo_data.photographs(places.data, places.few(1000))
    half = len(images) // 2
    training = Training(steps=places.few(120), lr=3e-4, batch=16, even=True)

    def subject(shown: slice, held: slice) -> Subject:
        own = images[shown]

        def draw(count: int, generator: torch.Generator) -> Tensor:
            chosen = torch.randint(len(own), (count,), generator=generator)
            top, left = torch.randint(33, (2,), generator=generator).tolist()
            photographs = zoo_data.crops(own[chosen], top=top, left=left)
            return photographs.flip(-1) if top % 2 else photographs

        return Subject(
            model=model,
            draw=draw,
            trained={"lut-4-sensitivity": training},
            shown=zoo_data.crops(images[shown])[:200],
            held=zoo_data.crops(images[held]),
            measure=agreement,
            unit="same first class, %",
            shown_labels=labels[shown][:200],
            held_labels=labels[held],
        )

    first, second = slice(half), slice(half, None)
    return replace(subject(first, second), turned=lambda: subject(second, first))


def minilm(places: Places) -> Subject | None:
    model, words = others.sentence_encoder(), zoo_data.sentences(places.data, 200, 128)
    if model is None or words is None:
        return None
    count = places.few(100)
    return Subject(
        model=model,
        shown=words[:32],
        held=words[100 : 100 + count],
        measure=cosine,
        unit="cosine, %",
        int8="dynamic",
        weights=("encoder.encoder.*",),
    )


def speaker(places: Places) -> Subject | None:
    model = others.speaker_encoder()
    if model is None:
        return None
    train, test = (
        zoo_data.mel_bands(zoo_data.waves(places.data, split, 1.6))[:, :160]
        for split in ("train", "test")
    )
    training = Training(steps=places.few(150), lr=1e-3, batch=16)
    return Subject(
        model=model,
        shown=train,
        held=test,
        measure=cosine,
        unit="cosine, %",
        int8="dynamic",
        trained={"prune-l1-90": training},
    )


def pitch(places: Places, size: str) -> Subject | None:
    model = others.pitch(size)
    if model is None:
        return None
    train, test = (
        zoo_data.pitch_frames(zoo_data.waves(places.data, split, 2.0))
        for split in ("valid", "test")
    )
    count = places.few(1000 if size == "tiny" else 200)
    return Subject(
        model=model,
        shown=train[:64],
        held=test[:count],
        measure=same_pitch,
        unit="same pitch, %",
    )


def faces(places: Places, stage: str, size: int) -> Subject | None:
    model = others.faces(stage)
    if model is None:
        return None
    images = zoo_data.patches(zoo_data.photographs(places.data, 264)[0], size)
    return Subject(
        model=model,
        shown=images[:64],
        held=images[64:],
        measure=cosine,
        unit="cosine, %",
    )


def voice(places: Places) -> Subject | None:
    model = others.voice()
    if model is None:
        return None
    train, test = (
        zoo_data.voice_windows(zoo_data.waves(places.data, split, 4.0))
        for split in ("valid", "test")
    )
    # The first convolution is a Fourier transform, no weight.
    return Subject(
        model=model,
        shown=train[:32],
        held=test,
        measure=same_decision,
        unit="same decision, %",
        int8="dynamic",
        weights=("conv*", "lstm*", "final*"),
    )


def smollm2(places: Places) -> Subject | None:
    model = llama_blocks.smollm2_block()
    if model is None:
        return None
    vocabulary, embeddings = llama_blocks.smollm2_words()
    states = embeddings[zoo_data.known_words(places.data, vocabulary, 64, 64)]
    return Subject(
        model=model,
        shown=states[:16],
        held=states[16:],
        measure=cosine,
        unit="cosine, %",
        int8="dynamic",
    )


ENTRIES: dict[str, Callable[[Places], Subject | None]] = {
    "resnet20": lambda places: cifar(places, 20),
    "resnet56": lambda places: cifar(places, 56),
    "resnet20-star": star,
    "speech-mask": speech,
    "efficientnet-lite0": efficientnet,
    "minilm": minilm,
    "speaker-lstm": speaker,
    "crepe-tiny": lambda places: pitch(places, "tiny"),
    "crepe-full": lambda places: pitch(places, "full"),
    "mtcnn-pnet": lambda places: faces(places, "pnet", 120),
    "mtcnn-rnet": lambda places: faces(places, "rnet", 24),
    "mtcnn-onet": lambda places: faces(places, "onet", 48),
    "silero-vad": voice,
    "smollm2-block": smollm2,
}
