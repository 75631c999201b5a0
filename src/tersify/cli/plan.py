"""`tersify plan`: the lowered network goes into the file, for machines without Python."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tersify.cli.common import (
    DATA_HELP,
    MaxDecodedBytes,
    Overwrite,
    Shape,
    Target,
    TargetOption,
    Trust,
    allowed,
    check_free,
    network_and_input,
)
from tersify.cli.completion import data_sets

if TYPE_CHECKING:
    from tersify.codec import TerseFile
    from tersify.lab.data.types import Data


def plan(
    file: Annotated[Path, typer.Argument(help="A .terse file.")],
    out: Annotated[
        Path, typer.Option(help="The .terse file to write: the same with a plan.")
    ],
    precision: Annotated[
        str, typer.Option(help="Precision of the activations: fp32 or int8.")
    ] = "fp32",
    data: Annotated[
        str | None,
        typer.Option(
            help="Data for activation ranges and input normalization: " + DATA_HELP,
            autocompletion=data_sets,
        ),
    ] = None,
    data_root: Annotated[
        Path | None, typer.Option(help="Folder of the data sets.")
    ] = None,
    images: Annotated[
        int, typer.Option(min=1, help="Training images that set the activation ranges.")
    ] = 256,
    lengths: Annotated[
        str | None,
        typer.Option(
            help="One input of another length, as --shape takes it: the length is then free."
        ),
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(
            help="MEAN/STD by which bytes of images go in, for all channels or each: 0.5,0.4,0.4/0.2,0.2,0.2."
        ),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(help="A text file with the names of the classes, one a line."),
    ] = None,
    target: Target = None,
    option: TargetOption = None,
    trust: Trust = False,
    shape: Shape = None,
    overwrite: Overwrite = False,
    max_decoded_bytes: MaxDecodedBytes = None,
) -> None:
    """Lower the network of FILE, so that libtersify and tersify-run need no Python to
    run it.

    What the file says of images and classes stays, unless --data or a flag says else.
    """
    from tersify import codec
    from tersify.codec.container import Sections
    from tersify.codec.writer import add_plan
    from tersify.lab import dataset
    from tersify.lab.data.types import normalize
    from tersify.lab.random_inputs import random_input
    from tersify.runtime.portable import described, lowered
    from tersify.saving import called_by_its_activations

    check_free(file, out, overwrite)
    if precision == "int8" and data is None:
        raise ValueError(
            "an int8 plan needs --data, from which its activations get their ranges"
        )
    model, example = network_and_input(
        file, target, option, shape, max_decoded_bytes, batch=2, trust=trust
    )
    told: dict[str, Any] = {}
    if image is not None:
        told["image"] = _mean_and_std(image)
    if labels is not None:
        told["labels"] = labels.read_text("utf-8").splitlines()
    opened = codec.open(file, **allowed(max_decoded_bytes))
    loaded: Data | None = None if data is None else dataset(data, root=data_root)
    calibration = None
    if loaded is not None:
        seen = normalize(loaded.train.images[:images], loaded)
        example, calibration = seen[:2], [seen] if precision == "int8" else None
    other = (
        None if lengths is None else random_input(model, None, lengths, len(example))
    )
    program = called_by_its_activations(
        lowered(
            model,
            example,
            opened.read(),
            precision=precision,
            calibration=calibration,
            other=other,
        )
    )
    program = described(program, **(_facts(opened, loaded) | told))
    size = add_plan(Sections(file), out, program.to_bytes())
    batch = "any batch" if program.batch is None else f"a batch of {program.batch}"
    if program.length is not None:
        batch += f" and {program.length.describe()}"
    typer.echo(
        f"{out}: {size:,} bytes, {len(program.to_bytes()):,} of them a plan of {len(program.calls)} calls in "
        f"{program.precision}, for {batch}"
    )


def _facts(opened: TerseFile, loaded: Data | None) -> dict[str, Any]:
    """What the data says of images and classes, or else the plan that the file has."""
    from tersify.codec.writer import PLAN
    from tersify.runtime.portable import read_program

    if loaded is not None and not loaded.train.is_text:
        return {"image": (loaded.mean, loaded.std), "labels": loaded.class_names}
    if PLAN not in opened.section_names():
        return {}
    kept = read_program(opened)
    return {
        "image": (kept.mean, kept.std) if kept.mean else None,
        "labels": kept.labels,
    }


def _mean_and_std(text: str) -> list[list[float]]:
    try:
        mean, std = text.split("/")
        return [list(map(float, part.split(","))) for part in (mean, std)]
    except ValueError:
        raise ValueError(
            f"--image takes MEAN/STD, for all channels or each, such as 0.5,0.4,0.4/0.25,0.2,0.2; got {text!r}"
        ) from None
