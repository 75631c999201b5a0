"""Tables and sentences about the papers' results and speed, each from the JSON files
beside this one.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from tersify import codec
from tersify.report.line_charts import Point, scatter

HERE = Path(__file__).parent
ROOT = HERE.parent
EXAMPLE = ROOT / "examples" / "resnet20-star.terse"


def read(name: str) -> dict[str, Any]:
    return json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))


def ternary() -> str:
    """Paper 1: published beside ours, last epoch and best epoch."""
    lines = [
        "| | published | ours, last epoch | best epoch | epochs | seeds |",
        "|---|---|---|---|---|---|",
    ]
    for name in ("ternary-table1", "ternary-table2"):
        if not (HERE / f"{name}.json").is_file():
            continue
        for row in read(name)["rows"]:
            ours = row["ours"]
            told = _figures({key: entry["mean"] for key, entry in ours.items()})
            if _is_better(row):
                told = f"**{told}**"
            lines.append(
                f"| {row['name'].replace('*', chr(92) + '*')} | {_figures(row['published'])} | {told}{_spread(ours)} "
                f"| {ours['accuracy_best']['mean']:.2f} % | {ours['epochs']['mean']:.0f} | {row['seeds']} |"
            )
    return "\n".join(lines)


def _figures(values: dict[str, Any]) -> str:
    if "accuracy" not in values:
        return "–"
    parts = [f"{values['accuracy']:.2f} %"]
    zeros = values.get("sparsity")
    if isinstance(zeros, list):
        parts.append(f"{zeros[0]}–{zeros[1]} % zeros")
    elif zeros:
        parts.append(f"{zeros:.2f} % zeros")
    if values.get("entropy_bits"):
        parts.append(f"{values['entropy_bits']:.2f} bit")
    return ", ".join(parts)


def _spread(ours: dict[str, Any]) -> str:
    std = ours["accuracy"]["std"]
    return "" if std is None else f" (± {std:.2f})"


def _is_better(row: dict[str, Any]) -> bool:
    """At least as accurate as published and at least as sparse."""
    published, ours = row["published"], row["ours"]
    zeros = published.get("sparsity", 0.0)
    least = zeros[0] if isinstance(zeros, list) else zeros
    sparse = ours["sparsity"]["mean"] >= least if least else True
    return (
        "accuracy" in published
        and sparse
        and ours["accuracy"]["mean"] >= published["accuracy"]
    )


def example() -> str:
    """The network in examples/, as the file itself tells."""
    facts = codec.inspect(EXAMPLE)
    measured = facts["metadata"]["measured"]
    weights = sum(row["weights"] for row in facts["tensors"] if "sparsity" in row)
    packed, dense = facts["file_bytes"], facts["dense_bytes"]
    sentences = [
        f"`examples/{EXAMPLE.name}` is {packed:,} bytes with every parameter and buffer in it",
        f"{dense / packed:.1f} times smaller than its {dense:,} bytes in fp32",
        f"{8 * packed / weights:.2f} bit per weight at {facts['sparsity']:.1f} % zeros",
        f"where the order-0 entropy of its codes alone is {facts['entropy_bits']:.2f} bit",
    ]
    scored = f"{measured['accuracy']:.2f} % on the {measured['images']:,} test images"
    return (
        ", ".join(sentences) + f". It scores {scored} as stored (batch norm in fp16)."
    )


def file_size() -> str:
    figures = read("file-size")["figures"] | read("file-size-nncodec")["figures"]
    coders = {
        "tersify": "`.terse`",
        "nncodec": "NNCodec (MPEG NNR)",
        "zstd_19": "zstd-19",
        "xz_9e": "xz",
        "brotli_11": "brotli-11",
    }
    networks = {
        "ternary_50": "ternary, 50 % zeros",
        "ternary_90": "ternary, 90 % zeros",
        "ternary_95": "ternary, 95 % zeros",
        "lut_4bit": "4-bit table",
    }
    lines = [f"| | {' | '.join(coders.values())} |", "|---" * (len(coders) + 1) + "|"]
    for key, name in networks.items():
        values = {coder: figures[f"{key}_{coder}"] for coder in coders}
        best = min(values.values())
        cells = [
            f"**{_signed(v)} %**" if v == best else f"{_signed(v)} %"
            for v in values.values()
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")


def speed() -> str:
    """Milliseconds on two threads: dense engines in fp32, the sparse one, and the same
    in 8 bits.
    """
    figures = read("cpu-inference")["figures"]
    kinds = {
        "fp32": {
            "torch": "PyTorch eager",
            "torch.compile": "torch.compile",
            "onnxruntime": "ONNX Runtime",
            "openvino": "OpenVINO",
            "deepsparse": "DeepSparse 1.8 (sparse)",
            "tersify": "**Tersify**",
        },
        "int8": {
            "onnxruntime-int8": "ONNX Runtime",
            "openvino-int8": "OpenVINO",
            "tersify-int8": "**Tersify**",
        },
    }
    batches = (1, 8, 64)
    lines = [
        "| activations | engine | " + " | ".join(f"batch {b}" for b in batches) + " |",
        "|---|---|---|---|---|",
    ]
    for kind, engines in kinds.items():
        for peer, name in engines.items():
            cells = []
            for batch in batches:
                milliseconds = figures[f"ternary.z90.b{batch}.t2.{peer}.median_ms"]
                cells.append(f"{milliseconds:.1f}")
                if name.startswith("**"):
                    times = figures[f"ternary.z90.b{batch}.t2.{peer}.against.{kind}"]
                    cells[-1] = f"**{milliseconds:.1f}** ({times:.1f} times)"
            lines.append(f"| {kind} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def speech() -> str:
    """Paper 2: what quantization costs the speech network in STOI, for each head."""
    found = read("lut-table3")
    names = {
        "8-U": "8-bit fixed point",
        "4-U": "4-bit fixed point",
        "4-NU": "the paper's 4-bit table",
        "4-NU/8-U": "the same, second layer in 8 bits",
        "4-NU searched": "the paper's table, its split searched",
        "optimal 4": "our optimal 4-bit table",
        "optimal 3": "our optimal 3-bit table",
    }
    heads = [head for head in ("magnitude", "mask", "spectrum") if head in found]
    floats = [f"{head} head ({found[head]['float']['stoi']:.3f})" for head in heads]
    lines = [
        f"| | published (0.87) | {' | '.join(floats)} | bytes of the codes |",
        "|---" * (len(heads) + 3) + "|",
    ]
    for key, name in names.items():
        rows = [
            next(
                row
                for title, row in found[head].items()
                if title.partition(" (")[0] == key
            )
            for head in heads
        ]
        published = rows[0]["published"].get("loss")
        losses = (row["minus"]["float"] for row in rows)
        cells = [
            f"{_loss(loss['mean'])} ± {loss['standard_error']:.4f}" for loss in losses
        ]
        stated = "–" if published is None else _loss(published, 3)
        lines.append(
            f"| {name} | {stated} | {' | '.join(cells)} | {rows[0]['weight_bytes']:,} |"
        )
    return "\n".join(lines)


def _loss(value: float, digits: int = 4) -> str:
    return f"{value:+.{digits}f}".replace("-", "−")


def _with_spread(entry: dict[str, Any]) -> str:
    if entry["std"] is None:
        return f"{entry['mean']:.2f} %"
    return f"{entry['mean']:.2f} ± {entry['std']:.2f} % ({len(entry['seeds'])} seeds)"


def pruning() -> str:
    """Paper 3: networks pruned by several methods beside their dense twins."""
    lines = [
        "| | method | zeros | accuracy | less than dense |",
        "|---|---|---|---|---|",
    ]
    networks = {
        "sparse-vgg16-mnist": "VGG-16, MNIST",
        "sparse-vgg16": "VGG-16, CIFAR-10",
        "sparse-bert": "MiniLM, sentence polarity",
    }
    for name, network in networks.items():
        rows = {row["id"]: row for row in read(name)["rows"]}
        twin = rows.pop("dense")["ours"]["accuracy"]
        dense = twin["mean"]
        lines.append(f"| {network} | dense | 0 % | {_with_spread(twin)} | |")
        for row in rows.values():
            ours = {key: entry["mean"] for key, entry in row["ours"].items()}
            lost = f"{dense - ours['accuracy']:.2f}".replace("-", "−")
            figures = f"{ours['sparsity']:.0f} % | {_with_spread(row['ours']['accuracy'])} | {lost}"
            lines.append(f"| {network} | {row['name']} | {figures} |")
    return "\n".join(lines)


def movement() -> str:
    """Movement less magnitude pruning on the same seeds, with its standard error over
    them.
    """
    seeds = {
        row["id"]: row["ours"]["accuracy"]["seeds"]
        for row in read("sparse-bert")["rows"]
    }
    told = []
    for tail in ("", "-alone"):
        pairs = zip(
            seeds[f"movement-85{tail}"], seeds[f"magnitude-85{tail}"], strict=True
        )
        more = [moved - kept for moved, kept in pairs]
        error = stdev(more) / len(more) ** 0.5
        told.append(
            (
                f"{_loss(mean(more), 2)} ± {error:.2f}",
                f"{sum(d > 0 for d in more)} of {len(more)}",
            )
        )
    (taught, often), (alone, seldom) = told
    return (
        f"Movement less magnitude, seed by seed: **{taught}** points with the dense network as a teacher (better in "
        f"{often} seeds), {alone} without one ({seldom}); ± is the standard error over the seeds, all of them on the "
        "same test sentences."
    )


def energy() -> str:
    """Paper 4: the rows that were run, published beside ours, simple pruning of as many
    parameters among them.
    """
    return _energy_table("energy-table1")


def energy_imagenet_stem() -> str:
    """The same for ResNets that are not the paper's, so without what it published."""
    return _energy_table("energy-imagenet-stem", published=False)


def _energy_table(record: str, *, published: bool = True) -> str:
    if not (HERE / f"{record}.json").is_file():
        return "No row has been run yet."
    rows = {row["id"]: row for row in read(record)["rows"]}
    head = [
        "",
        "published",
        "ours",
        "R",
        "shrunk to",
        "all units (F)",
        "beside the search",
        "epochs",
    ]
    shown = (
        rows.values()
        if published
        else [row | {"published": {}} for row in rows.values()]
    )
    lines = [head, *(_energy_cells(row, rows) for row in shown)]
    lines = lines if published else [line[:1] + line[2:] for line in lines]
    if not any(line[-2] for line in lines[1:]):
        lines = [line[:-2] + line[-1:] for line in lines]
    told = ["| " + " | ".join(line).lstrip() + " |" for line in lines]
    return "\n".join([told[0], "|---" * len(lines[0]) + "|", *told[1:]])


def _energy_cells(row: dict[str, Any], rows: dict[str, Any]) -> list[str]:
    ours, published = (
        {key: entry["mean"] for key, entry in row["ours"].items()},
        row["published"],
    )
    kept, most = ours.get("kept", 100.0), published.get("kept", 100.0)
    told = _with_spread(row["ours"]["accuracy"])
    if (
        "accuracy" in published
        and ours["accuracy"] >= published["accuracy"]
        and kept <= most
    ):
        told = f"**{told}**"
    stated = f"{published['accuracy']:.2f} %" if "accuracy" in published else "–"
    if "kept" in published:
        stated += f" at {most:.2f} %"
    full = f"{ours['full_accuracy']:.2f} %" if "full_accuracy" in ours else ""
    if "full_reestimated_accuracy" in ours:
        full += (
            f", batch norms measured again {ours['full_reestimated_accuracy']:.2f} %"
        )
    shrunk = f"{ours['shrunk_parameters']:,.0f}" if "shrunk_parameters" in ours else ""
    beside = _beside_search(row, rows)
    return [
        row["name"],
        stated,
        told,
        f"{kept:.2f} %",
        shrunk,
        full,
        beside,
        f"{ours['epochs']:.0f}",
    ]


def shrunk() -> str:
    """What taking half of the filters out saves."""
    figures = read("shrink")["figures"]
    ways = {"single": "layer by layer", "coupled": "with those they are added to"}
    told = [
        f"**{figures[f'{way}_shrunk_speedup']:.1f} times** as fast ({how})"
        for way, how in ways.items()
    ]
    small = " and ".join(f"{figures[f'{way}_shrunk_parameters']:,}" for way in ways)
    return (
        f"A ResNet-18 without half of its filters, shrunk to {small} of {figures['dense_parameters']:,} parameters, "
        f"runs {' and '.join(told)} on a CPU; Torch-Pruning, which leaves the same "
        f"{figures['torch_pruning_parameters']:,}, {figures['torch_pruning_speedup']:.2f} times, where ours is "
        f"{figures['coupled_shrunk_speedup']:.2f} (`python benchmarks/shrink.py`).\n{_found_shrunk()}"
    )


def _found_shrunk() -> str:
    record = read("shrink-found")
    figures, side = record["figures"], record["machine"]["side"]
    return (
        "The ResNet-18 that the search found in the paper's training, with the stem of ImageNet, shrunk to "
        f"{figures['found_shrunk_parameters']:,} of {figures['dense_parameters']:,}, runs "
        f"**{figures['found_shrunk_speedup']:.1f} times** as fast as its dense twin on its {side}×{side} images "
        f"(`python benchmarks/shrink.py --found FILE.terse --side {side}`)."
    )


def _beside_search(row: dict[str, Any], rows: dict[str, Any]) -> str:
    """Points that a simple baseline has more than the search of the same training."""
    network, _, way = row["id"].partition("-")
    trained_as = {
        "energy": ("deep", "filter", "agp"),
        "energy-80": ("filter-80", "agp-80"),
        "best": ("best-filter", "best-agp"),
    }
    way, equal = (
        way.removesuffix("-shrunk"),
        "equal when shrunk" if way.endswith("-shrunk") else "equal R",
    )
    search = next((search for search, ways in trained_as.items() if way in ways), None)
    other = rows.get(f"{network}-{search}")
    if other is None:
        return ""
    # A mean over seeds against one of them would tell of luck: as many of each, the
    # first ones.
    own, theirs = row["ours"]["accuracy"]["seeds"], other["ours"]["accuracy"]["seeds"]
    alike = min(len(own), len(theirs))
    points = mean(own[:alike]) - mean(theirs[:alike])
    seeds = (
        f" ({alike} of {max(len(own), len(theirs))} seeds)"
        if len(own) != len(theirs)
        else ""
    )
    told = (
        f"**better by {points:.2f}**"
        if points > 0
        else f"{points:.2f} less".replace("-", "")
    )
    return f"{told}, {equal}{seeds}"


def overhead() -> str:
    """What the bookkeeping of a ternary session, and a search, add to a training step."""
    on = {
        device: read(f"training-overhead-{device}")["figures"]
        for device in ("gpu", "cpu")
    }
    eager = {d: _added(on[d]["eager_overhead_percent"]) for d in on}
    compiled = {
        d: _added(on[d]["compiled_overhead_percent"])
        for d in on
        if "compiled_overhead_percent" in on[d]
    }
    to_compiled = (
        f", {compiled['gpu']} to a compiled one"
        if "gpu" in compiled
        else " (compiled steps were not timed)"
    )
    return (
        f"- A ternary session adds {eager['gpu']} to an eager training step of ResNet-20\\* on an H200"
        f"{to_compiled}; on a CPU {eager['cpu']} and {compiled['cpu']}.\n{_search_overhead()}"
    )


def _added(percent: float) -> str:
    return "nothing measurable" if percent < 0.5 else f"{percent:.0f} %"


def _search_overhead() -> str:
    figures = read("energy-overhead-gpu")["figures"]
    names = {"resnet18": "ResNet-18", "resnet50": "ResNet-50"}
    told = []
    for mode in ("eager", "compiled"):
        found = {
            name: figures.get(f"{key}_{mode}_search_ratio")
            for key, name in names.items()
        }
        told += [
            f"{ratio:.2f} times as long for {name} ({mode})"
            for name, ratio in found.items()
            if ratio
        ]
    return f"- The energy search (8 sub-networks, parents judged again) makes a training step there {', '.join(told)}."


def picture() -> str:
    """Accuracy against sparsity: our runs, and hollow what was published."""
    points: list[Point] = []
    for index, row in enumerate(
        row
        for row in read("ternary-table2")["rows"]
        if row["ours"].get("sparsity", {}).get("mean")
    ):
        ours, published = row["ours"], row["published"]
        points.append(
            Point(
                name=row["name"],
                x=ours["sparsity"]["mean"],
                y=ours["accuracy"]["mean"],
                run=index,
            )
        )
        stated = published.get("sparsity"), published.get("accuracy")
        if isinstance(stated[0], float) and stated not in [
            (p.x, p.y) for p in points if p.run is None
        ]:
            points.append(
                Point(
                    name=f"{row['name']}, paper",
                    x=published["sparsity"],
                    y=published["accuracy"],
                )
            )
    drawing = scatter("picture", points, [], x_label="zeros, %")
    return drawing.standalone("Accuracy on CIFAR-10, %; hollow: published")


TABLES = {
    "ternary": ternary,
    "example": example,
    "file-size": file_size,
    "speed": speed,
    "speech": speech,
    "pruning": pruning,
    "movement": movement,
    "energy": energy,
    "energy-imagenet-stem": energy_imagenet_stem,
    "shrunk": shrunk,
    "overhead": overhead,
}
