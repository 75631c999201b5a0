"""`tersify enhance`: hear the speech network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tersify.cli.common import MaxDecodedBytes, allowed

if TYPE_CHECKING:
    from torch import Tensor


def enhance(
    source: Annotated[
        Path, typer.Argument(metavar="IN", help="A sound file with noisy speech.")
    ],
    result: Annotated[
        Path,
        typer.Argument(
            metavar="OUT", help="Where the enhanced speech goes (16-bit, 8 kHz)."
        ),
    ],
    model: Annotated[
        Path, typer.Option(help="A .terse file of the network speech-mlp.")
    ],
    window: Annotated[
        int, typer.Option(help="Samples of a frame, 128 or 256, as in training.")
    ] = 128,
    integer: Annotated[
        bool,
        typer.Option(
            "--integer",
            help="The integer simulation of the circuit, from samples to samples.",
        ),
    ] = False,
    rounding: Annotated[
        str,
        typer.Option(
            help="Rounding of --integer; half-up, floor, half-even, toward-zero."
        ),
    ] = ("half-up"),
    dump: Annotated[
        Path | None,
        typer.Option(
            help="With --integer: every integer of every node, as a .npz file."
        ),
    ] = None,
    max_decoded_bytes: MaxDecodedBytes = None,
) -> None:
    """Take noise out of IN with the network of a file."""
    from tersify.lab.networks.speech import SpeechMlp
    from tersify.lab.speech import Framing, audio
    from tersify.lab.speech import enhance as apply
    from tersify.lab.trainer import load_network

    if dump and not integer:
        raise ValueError(
            "--dump writes the nodes of the integer simulation; add --integer"
        )
    network = load_network(
        model,
        remedy="enhancing takes the network speech-mlp",
        **allowed(max_decoded_bytes),
    )
    if not isinstance(network, SpeechMlp):
        raise ValueError(
            f"{model} holds a {type(network).__name__}; enhancing takes the network speech-mlp"
        )
    noisy = audio.read(source)
    if integer:
        cleaner = _in_integers(
            model, noisy, network.head, window, rounding, dump, max_decoded_bytes
        )
    else:
        cleaner = apply(network, noisy, Framing(window))
    clipped = audio.write(result, cleaner)
    note = audio.conversions(source)
    loud = f"; {clipped} samples beyond full scale were clipped" if clipped else ""
    typer.echo(
        f"{result}: {len(noisy) / 8000:.2f} s at 8 kHz{note}, enhanced by the {network.head} head{loud}"
    )


def _in_integers(
    model: Path,
    noisy: Tensor,
    head: str,
    window: int,
    rounding: str,
    dump: Path | None,
    max_decoded_bytes: int | None,
) -> Tensor:
    """The signal as the circuit would give it, and a line for each node: format,
    extremes, saturated values.
    """
    import numpy as np

    from tersify import codec
    from tersify.codec.atomic import replacing
    from tersify.lab.speech.enhance import enhance_in_integers
    from tersify.runtime.fixed import Monitor

    opened = codec.open(model, **allowed(max_decoded_bytes))
    monitor = Monitor(dump=dump is not None)
    cleaner = enhance_in_integers(
        opened, noisy, monitor, head=head, window=window, rounding=rounding
    )
    typer.echo(
        f"{'node':24} {'bits':>4} {'fraction':>8} {'lowest':>10} {'highest':>10} {'saturated':>12}"
    )
    for name, node in monitor.nodes.items():
        typer.echo(
            f"{name:24} {node.format.width:4} {node.format.fraction:8} {node.lowest:10,} {node.highest:10,} "
            f"{node.overflows:12,}"
        )
    if dump:
        nodes: dict[str, Any] = {
            name: node.dump for name, node in monitor.nodes.items()
        }
        with replacing(dump) as file:
            np.savez_compressed(file, **nodes)
        typer.echo(f"{dump}: {len(monitor.nodes)} nodes")
    return cleaner
