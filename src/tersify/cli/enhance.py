"""`tersify enhance`: hear the speech network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def enhance(
    source: Annotated[Path, typer.Argument(metavar="IN", help="A sound file with noisy speech.")],
    result: Annotated[Path, typer.Argument(metavar="OUT", help="Where the enhanced speech goes (16-bit, 8 kHz).")],
    model: Annotated[Path, typer.Option(help="A .terse file of the network speech-mlp.")],
    window: Annotated[int, typer.Option(help="Samples of a frame, 128 or 256, as in training.")] = 128,
) -> None:
    """Take noise out of IN with the network of a file."""
    from tersify.lab.networks.speech import SpeechMlp
    from tersify.lab.speech import Framing, audio
    from tersify.lab.speech import enhance as apply
    from tersify.lab.trainer import load_network

    network = load_network(model)
    if not isinstance(network, SpeechMlp):
        raise ValueError(f"{model} holds a {type(network).__name__}; enhancing takes the network speech-mlp")
    noisy = audio.read(source)
    rate, channels = audio.facts(source)
    changes = [f"{channels} channels averaged"] * (channels > 1) + [f"resampled from {rate} Hz"] * (rate != 8000)
    clipped = audio.write(result, apply(network, noisy, Framing(window)))
    note = f" ({', '.join(changes)})" if changes else ""
    loud = f"; {clipped} samples beyond full scale were clipped" if clipped else ""
    typer.echo(f"{result}: {len(noisy) / 8000:.2f} s at 8 kHz{note}, enhanced by the {network.head} head{loud}")
