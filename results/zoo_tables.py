"""Tables of the zoo: networks of other people × recipes, in quality, bytes and speed."""

from __future__ import annotations

from typing import Any

from tables import read

NETWORKS = {
    "resnet20": ("ResNet-20, CIFAR-10", "accuracy, %"),
    "resnet56": ("ResNet-56, CIFAR-10", "accuracy, %"),
    "resnet20-star": ("ResNet-20\\*, CIFAR-10", "accuracy, %"),
    "efficientnet-lite0": ("EfficientNet-Lite0", "same first class, %"),
    "mtcnn-pnet": ("MTCNN, PNet, 120×120", "cosine, %"),
    "mtcnn-rnet": ("MTCNN, RNet", "cosine, %"),
    "mtcnn-onet": ("MTCNN, ONet", "cosine, %"),
    "crepe-tiny": ("CREPE tiny", "same pitch, %"),
    "crepe-full": ("CREPE full", "same pitch, %"),
    "speech-mask": ("speech mask", "cosine, %"),
    "silero-vad": ("Silero VAD, 4 s", "same decision, %"),
    "speaker-lstm": ("Resemblyzer, 1.6 s", "cosine, %"),
    "minilm": ("MiniLM-L6, 128 tokens", "cosine, %"),
    "smollm2-block": ("SmolLM2, one block, 64 tokens", "cosine, %"),
}
PEERS = {
    "torch": "torch",
    "torch.compile": "`torch.compile`",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO f32",
    "openvino-default": "OpenVINO default",
    "onnxruntime-int8": "ONNX Runtime int8",
}
FLOATS = ("torch", "torch.compile", "onnxruntime", "openvino")
RECIPES = ("as-shipped", "lut-4", "lut-4-sensitivity", "lut-allocated", "uniform-8", "prune-l1-90-trained", "twn-trained")  # fmt: skip  # noqa: E501


def _measured(figures: dict[str, Any]) -> list[str]:
    return [name for name in NETWORKS if f"{name}.fp32.quality" in figures]


def sizes() -> str:
    """Quality and bytes of every network and recipe."""
    figures = read("zoo")["figures"]
    columns = (
        "network",
        "measured",
        "recipe",
        "quality",
        "with int8",
        "bytes",
        "of fp32",
        "zstd-19",
        "NNCodec",
    )
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for name in _measured(figures):
        title, unit = NETWORKS[name]
        dense = figures[f"{name}.fp32.bytes"]
        lines.append(
            f"| {title} | {unit} | fp32 | {figures[f'{name}.fp32.quality']:.2f} | | {dense:,} | | | |"
        )
        for recipe in RECIPES:
            found = {w: figures.get(f"{name}.{recipe}.{w}") for w in WANTED}
            if found["bytes"] is None:
                continue
            cells = [
                _told(found["quality"]),
                _told(found["int8_quality"]),
                f"**{found['bytes']:,}**",
            ]
            cells += [f"1/{dense / found['bytes']:.1f}"]
            cells += [
                f"{found[w]:,}" if found[w] else "–"
                for w in ("zstd_19_bytes", "nncodec_bytes")
            ]
            lines.append(
                f"| | | {recipe.replace('-trained', ', trained')} | {' | '.join(cells)} |"
            )
    return "\n".join(lines)


def speeds() -> str:
    """Milliseconds of one item on one thread; ours beside the fastest of those with the
    same activations.
    """
    figures = read("zoo")["figures"]
    head = (
        "network",
        *PEERS.values(),
        "recipe",
        "ours",
        "ours int8",
        "against fp32 engines",
        "int8 against all",
    )
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for name in _measured(figures):
        theirs = {peer: figures.get(f"{name}.{peer}_ms") for peer in PEERS}
        first = True
        for recipe in RECIPES:
            ours, int8 = (
                figures.get(f"{name}.{recipe}.tersify{kind}_ms")
                for kind in ("", "-int8")
            )
            if ours is None or recipe in SAME_SPEED:
                continue
            cells = [NETWORKS[name][0] if first else ""]
            cells += [_ms(theirs[peer]) if first else "" for peer in PEERS]
            best = min(theirs[peer] for peer in FLOATS if theirs[peer] is not None)
            least = min(time for time in theirs.values() if time is not None)
            cells += [
                recipe.replace("-trained", ", trained"),
                _ms(ours),
                _ms(int8),
                _times(best, ours),
            ]
            cells += [_times(least, int8) if int8 else "–"]
            lines.append("| " + " | ".join(cells) + " |")
            first = False
    return "\n".join(lines)


def dense_engines() -> str:
    """Layers that the first kernels were not made for; CPU milliseconds on one thread."""
    figures = read("dense-engines")["figures"]
    engines = {
        "torch": "torch",
        "onnxruntime": "ONNX Runtime",
        "onnxruntime-int8": "ONNX Runtime int8",
        "tersify": "ours",
        "tersify-int8": "ours int8",
    }
    networks = {
        "resnet32": "ResNet-32, 4-bit tables",
        "minilm": "MiniLM, 4-bit tables, 128 tokens",
        "lstm": "three LSTM layers, 90 % zeros, 160 frames",
    }
    lines = [
        "| | " + " | ".join(engines.values()) + " |",
        "|---" * (len(engines) + 1) + "|",
    ]
    for key, title in networks.items():
        cells = [_ms(figures.get(f"{key}.{engine}_ms")) for engine in engines]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def ternary_linear() -> str:
    """A ternary layer of 4096 × 4096, and eight in a row, on two threads; microseconds."""
    figures = read("ternary-linear")["figures"]
    engines = {
        "torch-int8": "torch, int8",
        "onnxruntime-int8": "ONNX Runtime, int8",
        "onnxruntime-int4": "ONNX Runtime, 4 bits in blocks of 256",
        "onnxruntime-int2": "ONNX Runtime, 2 bits in blocks of 128",
        "openvino-int8": "OpenVINO, int8",
        "llama.cpp-tq2": "llama.cpp, TQ2_0",
        "tersify": "ours, fp32 activations",
        "tersify-int8": "ours, int8 activations",
    }
    lines = ["| | one layer, µs | eight, µs |", "|---|---|---|"]
    for engine, title in engines.items():
        cells = [
            f"{1000 * figures[f'{network}.z33.b1.t2.{engine}.median_ms']:.0f}"
            for network in ("linear4096", "linear4096x8")
        ]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _told(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _times(theirs: float, ours: float) -> str:
    return f"**{theirs / ours:.2f}**" if theirs > ours else f"{theirs / ours:.2f}"


WANTED = ("quality", "int8_quality", "bytes", "zstd_19_bytes", "nncodec_bytes")
# the tables differ from lut-4, not the kernels
SAME_SPEED = ("lut-4-sensitivity", "lut-allocated")
TABLES = {
    "zoo-sizes": sizes,
    "zoo-speeds": speeds,
    "dense-engines": dense_engines,
    "ternary-linear": ternary_linear,
}
