"""`tersify export`: a folder for an FPGA, a C source, an ONNX file, a GGUF file, or
dense safetensors.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tersify.cli.common import (
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

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from tersify.codec import TerseFile
    from tersify.runtime.fixed import FixedNetwork

export = typer.Typer(
    help="Hand a .terse file over: a folder for an FPGA, a C source, an ONNX or GGUF file, or dense safetensors.",
    add_completion=False,
)


@export.callback(invoke_without_command=True)
def _alone(context: typer.Context) -> None:
    # Typer's own no_args_is_help ends in an error without a word in some versions.
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@export.command()
def fpga(
    file: Annotated[
        Path, typer.Argument(help="A .terse file whose matrices are lookup tables.")
    ],
    out: Annotated[Path, typer.Option(help="The folder to write; it must be empty.")],
    vectors: Annotated[
        int, typer.Option(help="Golden vectors for the testbench.")
    ] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the golden vectors.")] = 0,
    sound: Annotated[
        Path | None,
        typer.Option(
            help="A sound file whose frames become the golden vectors of a speech network."
        ),
    ] = None,
    lanes: Annotated[
        int, typer.Option(help="Multiply-accumulate lanes of each layer.")
    ] = 1,
    input_fraction: Annotated[
        int, typer.Option(help="Fraction bits of the 8-bit inputs.")
    ] = 4,
    rounding: Annotated[
        str, typer.Option(help="half-up, floor, half-even or toward-zero.")
    ] = "half-up",
    synth: Annotated[
        bool, typer.Option("--synth", help="Count cells with yosys, for the README.")
    ] = False,
    max_decoded_bytes: MaxDecodedBytes = None,
) -> None:
    """Tables, codes, Verilog, golden vectors, a Makefile and a README."""
    from tersify import codec
    from tersify.export.fpga import export_fpga
    from tersify.runtime.fixed import Format, fixed_network

    opened = codec.open(file, **allowed(max_decoded_bytes))
    if sound is None:
        network, inputs = (
            fixed_network(
                opened,
                input=Format(width=8, fraction=input_fraction),
                rounding=rounding,
            ),
            None,
        )
    else:
        network, inputs = _circuit_and_frames(opened, sound, vectors, rounding)
    manifest = export_fpga(
        network,
        out,
        vectors=vectors,
        seed=seed,
        inputs=inputs,
        lanes=lanes,
        synth=synth,
    )
    for name, layer in manifest["layers"].items():
        typer.echo(
            f"{name}: {layer['inputs']} → {layer['outputs']}, {layer['n']}-bit codes, k = {layer['k']}: "
            f"{layer['code_bytes']:,} bytes of codes, {layer['table_bytes']} of table, {layer['bias_bytes']} of biases"
            f"; {layer['clocks']:,} clocks with lanes = {layer['lanes']}"
        )
    typer.echo(
        f"{out}: `make sim` runs {manifest['vectors']} golden vectors, `make synth` counts cells"
    )


def _circuit_and_frames(
    model: TerseFile, sound: Path, vectors: int, rounding: str
) -> tuple[FixedNetwork, npt.NDArray[np.int64]]:
    """The network with its points set by a sound, and frames of the sound; what was
    saturated is told.
    """
    from tersify.lab.speech import audio
    from tersify.lab.speech.integers import hear

    stored = model.metadata.get("target")
    options = stored.get("options", {}) if isinstance(stored, dict) else {}
    samples = audio.read(sound).double().numpy()
    heard = hear(
        model,
        samples,
        head=str(options.get("head", "mask")),
        frames=vectors,
        rounding=rounding,
    )
    nodes = heard.monitor.nodes
    for name, count in heard.monitor.overflows().items():
        typer.echo(
            f"{sound}: {count:,} of {nodes[name].values:,} {name} beyond their format were saturated"
        )
    typer.echo(
        f"{sound}{audio.conversions(sound)}: {len(heard.frames)} of {heard.of} frames are golden vectors"
    )
    return heard.network, heard.frames


@export.command()
def onnx(
    file: Annotated[Path, typer.Argument(help="A .terse file.")],
    out: Annotated[Path, typer.Option(help="The ONNX file to write.")],
    integer: Annotated[
        bool,
        typer.Option(
            "--integer", help="The exact integer network (int8 in, int8 out)."
        ),
    ] = False,
    dense: Annotated[
        bool,
        typer.Option(
            "--dense",
            help="Plain floats with batch norms folded in, for engines that expand tables at every call.",
        ),
    ] = False,
    target: Target = None,
    option: TargetOption = None,
    trust: Trust = False,
    shape: Shape = None,
    overwrite: Overwrite = False,
    max_decoded_bytes: MaxDecodedBytes = None,
) -> None:
    """Codes and tables as they are in the file, with Gather; ONNX Runtime expands them
    when it loads.
    """
    from tersify import codec
    from tersify.export.onnx_graph import export_onnx
    from tersify.export.onnx_integer import export_integer_onnx
    from tersify.runtime.fixed import fixed_network

    if integer and dense:
        raise typer.BadParameter(
            "--integer and --dense exclude each other; give one of them"
        )
    check_free(file, out, overwrite)
    opened = codec.open(file, **allowed(max_decoded_bytes))
    if integer:
        export_integer_onnx(fixed_network(opened), out)
        typer.echo(f"{out}: {out.stat().st_size:,} bytes, integers from end to end")
        return
    model, example = network_and_input(
        file, target, option, shape, max_decoded_bytes, batch=2, trust=trust
    )
    counts = export_onnx(model, opened, example, out, dense=dense)
    typer.echo(
        f"{out}: {out.stat().st_size:,} bytes, {counts['tables']} weights as tables, {counts['dense']} dense tensors"
    )


@export.command("c")
def c_source(
    file: Annotated[Path, typer.Argument(help="A .terse file with a plan.")],
    out: Annotated[Path, typer.Option(help="The folder to write; it must be empty.")],
    name: Annotated[
        str, typer.Option(help="Name of the source file and of its function.")
    ] = "network",
    vectors: Annotated[
        int, typer.Option(min=1, max=1000, help="Golden vectors for the test.")
    ] = 8,
    max_decoded_bytes: MaxDecodedBytes = None,
) -> None:
    """One C99 source with the weights in place: no allocation, a static arena, golden
    vectors and a Makefile.
    """
    from tersify import codec
    from tersify.export.c import export_c
    from tersify.runtime.portable import read_program

    opened = codec.open(file, **allowed(max_decoded_bytes))
    made = export_c(
        read_program(opened), opened.read(), out, name=name, vectors=vectors
    )
    typer.echo(
        f"{out}: {made['steps']} steps, {made['weight_bytes']:,} bytes of weights, {made['ram_bytes']:,} bytes of "
        "memory; `make test` runs the golden vectors, `make cortex-m4` tells what it takes of a microcontroller"
    )


@export.command()
def safetensors(
    file: Annotated[Path, typer.Argument(help="A .terse file.")],
    out: Annotated[Path, typer.Option(help="The safetensors file to write.")],
    overwrite: Overwrite = False,
    max_decoded_bytes: MaxDecodedBytes = None,
) -> None:
    """The dense state dict, for programs that know nothing of ours."""
    from tersify import codec
    from tersify.export.safetensors_file import export_safetensors

    check_free(file, out, overwrite)
    count = export_safetensors(
        codec.open(file, **allowed(max_decoded_bytes)).read(), out
    )
    typer.echo(f"{out}: {out.stat().st_size:,} bytes, {count} dense tensors")


@export.command()
def gguf(
    file: Annotated[Path, typer.Argument(help="A .terse file of a language model.")],
    out: Annotated[Path, typer.Option(help="The GGUF file to write.")],
    ternary: Annotated[
        Literal["TQ2_0", "TQ1_0"],
        typer.Option(help="The type of ternary matrices: the faster or the smaller."),
    ] = "TQ2_0",
    overwrite: Overwrite = False,
    max_decoded_bytes: MaxDecodedBytes = None,
) -> None:
    """For llama.cpp, without rounding: each tensor in the smallest type that holds it."""
    from tersify import codec
    from tersify.export.gguf_file import WIDE, export_gguf
    from tersify.lab.language import METADATA, described
    from tersify.tensor.blocks import Joined

    check_free(file, out, overwrite)
    opened = codec.open(file, **allowed(max_decoded_bytes))
    described(opened.metadata, file)
    counts = export_gguf(
        Joined(opened), opened.metadata[METADATA], out, ternary=ternary
    )
    wide = counts.pop(WIDE)
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    typer.echo(f"{out}: {out.stat().st_size:,} bytes, tensors of types {kinds}")
    if wide:
        typer.echo(
            f"{wide} matrices fit no smaller type of GGUF exactly, and are F32: the .terse file is the small one"
        )
