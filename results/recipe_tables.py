"""The table of every ready recipe beside its dense twin."""

from __future__ import annotations

from tables import read

DATA = {"digits": "recipes", "cifar10": "recipes-cifar10"}


def recipes() -> str:
    """Points below the dense twin, zeros and bytes, for each data set."""
    figures = {data: read(name)["figures"] for data, name in DATA.items()}
    names = sorted({key.split(".")[1] for found in figures.values() for key in found})
    columns = (
        "recipe",
        "digits: less than dense",
        "at worst",
        "zeros, %",
        "bytes",
        "CIFAR-10: less",
        "zeros, %",
        "bytes",
    )
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for name in names:
        cells = []
        for data, found in figures.items():
            own = {metric: found.get(f"{data}.{name}.{metric}") for metric in WANTED}
            if own["accuracy"] is None:
                cells += ["–"] * (4 if data == "digits" else 3)
                continue
            cells.append(f"{own['dense_accuracy'] - own['accuracy']:.2f}")
            cells += [f"{own['loss_worst']:.2f}"] if data == "digits" else []
            cells += [f"{own['sparsity']:.0f}", f"{own['file_bytes']:,.0f}"]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines)


WANTED = ("dense_accuracy", "accuracy", "loss_worst", "sparsity", "file_bytes")
TABLES = {"recipes": recipes}
