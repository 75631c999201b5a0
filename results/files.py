"""Tables about files and about the records themselves."""

from __future__ import annotations

from typing import Any

from tables import HERE, read


def imported() -> str:
    """Networks that were compressed elsewhere, saved as plain state dicts."""
    figures = read("imported-files")["figures"]
    networks = {
        "resnet20_ternary_45": "ResNet-20, ternary, w⁺ ≠ w⁻, 45 % zeros",
        "resnet20_ternary_73": "ResNet-20, ternary, w⁺ ≠ w⁻, 73 % zeros",
        "squeezenet_33_shared_32": "SqueezeNet, a third left, 32 shared values a layer",
        "resnet56_pruned_70": "ResNet-56, 70 % zeros",
    }
    lines = [
        "| | fp32 | zstd-19 | codes built by hand | plain `save` |",
        "|---|---|---|---|---|",
    ]
    for key, name in networks.items():
        sizes = [
            figures[f"{key}_{way}"]
            for way in ("dense", "zstd19", "by_hand", "plain_save")
        ]
        lines.append(f"| {name} | " + " | ".join(f"{size:,}" for size in sizes) + " |")
    return "\n".join(lines)


def dense_planes() -> str:
    """Dense floats: the fraction of their bytes that is left, and the speed of a core."""
    figures = read("dense-planes")["figures"]
    coders = {"tersify": "`.terse`", "zipnn": "ZipNN", "zstd3": "zstd-3"}
    lines = [
        "| | coder | left, % | encode, MB/s | decode, MB/s |",
        "|---|---|---|---|---|",
    ]
    for kind in ("bf16", "fp16", "fp32"):
        for coder, name in coders.items():
            found = [
                figures.get(f"{kind}_{coder}_{what}")
                for what in ("percent", "encode_mb_s", "decode_mb_s")
            ]
            if None not in found:
                lines.append(
                    f"| {kind} | {name} | {found[0]:.2f} | {found[1]:,.0f} | {found[2]:,.0f} |"
                )
    return "\n".join(lines)


KINDS = {
    "dense": "fp32, not compressed",
    "uniform": "`uniform-8`",
    "lut": "`lut-4-sensitivity`, tables of {} bits",
    "nncodec": "NNCodec, rate–distortion quantization, qp −{}",
    "squeeze": "`tersify squeeze`, price {}",
}


def squeezed() -> str:
    """Points of each kind: bytes of the whole file, and the accuracy that is lost."""
    figures = read("squeeze")["figures"]
    rows = [key.removesuffix("_accuracy") for key in figures if "_accuracy" in key]
    lines = [
        "| | bytes | held-out, points | test accuracy | test, points |",
        "|---|---|---|---|---|",
    ]
    for kind, told in KINDS.items():
        points = [row for row in rows if row.partition("_")[0] == kind]
        for row in sorted(points, key=lambda row: -figures[f"{row}_bytes"]):
            held, test = (
                figures[f"{row}_{what}"] - figures[f"dense_{what}"]
                for what in ("held_out", "accuracy")
            )
            lines.append(
                f"| {told.format(row.partition('_')[2])} | {figures[f'{row}_bytes']:,.0f} | {_points(held)} "
                f"| {figures[f'{row}_accuracy']:.2f} % | {_points(test)} |"
            )
    return "\n".join(lines)


def _points(value: float) -> str:
    return f"{round(value, 2) + 0.0:+.2f}".replace("-", "−").replace("+0.00", "0.00")


def records() -> str:
    """Every record with the machine and commit it came from."""
    lines = ["| record | machine | commit |", "|---|---|---|"]
    for path in sorted(HERE.glob("*.json")):
        found = read(path.stem)
        if path.stem == "prose":  # not measured: what figures in prose are
            continue
        rows = found.get("rows") or [found]
        machines = sorted(
            {_machine(row.get("machine") or found.get("machine")) for row in rows}
            - {""}
        )
        commits = sorted(
            {str(row.get("commit") or found.get("commit") or "")[:7] for row in rows}
            - {""}
        )
        lines.append(
            f"| `{path.name}` | {', '.join(machines) or '–'} | {', '.join(commits) or '–'} |"
        )
    return "\n".join(lines)


def _machine(told: Any) -> str:
    if isinstance(told, dict):
        told = (
            told.get("gpu")
            or told.get("device")
            or told.get("cpu")
            or told.get("processor")
            or ""
        )
    return str(told or "").partition(",")[0].strip()  # not how many runs shared it


TABLES = {"imported": imported, "dense-planes": dense_planes, "squeeze": squeezed}
