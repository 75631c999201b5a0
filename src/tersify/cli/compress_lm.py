"""`tersify compress-lm`: a language model in few bits, without training."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from tersify.cli import INTERRUPTED
from tersify.cli.common import Overwrite, check_free, know_small_folders
from tersify.cli.completion import language_recipes

if TYPE_CHECKING:
    from tersify.tensor import CompressedModel


def compress_lm(
    model: Annotated[
        Path,
        typer.Argument(
            help="A folder of transformers with a causal model, or a GGUF file."
        ),
    ],
    calibrate: Annotated[
        list[Path],
        typer.Option(help="Text the model should be good at; repeatable, and mixed."),
    ],
    out: Annotated[Path, typer.Option(help="The .terse file to write.")],
    recipe: Annotated[
        str,
        typer.Option(
            help="A ready recipe (lm-3bit, lm-2bit, lm-table4) or a TOML file.",
            autocompletion=language_recipes,
        ),
    ] = "lm-3bit",
    bits: Annotated[
        float | None, typer.Option(help="Bits per weight, instead of the recipe's.")
    ] = None,
    most_bytes: Annotated[
        int | None,
        typer.Option(
            "--bytes",
            min=1,
            help="Bytes that the whole file may take, instead of bits: as many bits as the coder fits in.",
        ),
    ] = None,
    windows: Annotated[int, typer.Option(min=1, help="Windows of text in total.")] = 64,
    tune_steps: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Tuning steps, instead of the recipe's; slow on a CPU; 0 skips tuning.",
        ),
    ] = None,
    tune_batch: Annotated[
        int, typer.Option(min=1, help="Windows of text in each tuning step.")
    ] = 16,
    length: Annotated[int, typer.Option(min=8, help="Tokens of a window.")] = 512,
    keep: Annotated[
        Path | None,
        typer.Option(
            help="Keep finished work in this folder; the same command resumes from it."
        ),
    ] = None,
    measure: Annotated[
        Path | None,
        typer.Option(help="Report the perplexity of this text, before and after."),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    bf16: Annotated[
        bool, typer.Option("--bf16", help="Compute the passes over the text in bf16.")
    ] = False,
    overwrite: Overwrite = False,
) -> None:
    """Write MODEL as a .terse file, tokenizer and all: rounded with compensation, coded
    by entropy.
    """
    import torch
    from rich.progress import (
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    import tersify
    from tersify.calibration import Calibration
    from tersify.codec.writer import encoded
    from tersify.compensated import compensate_, compensate_within_, next_token_loss
    from tersify.compensated.recipes import load_compensation
    from tersify.lab import language
    from tersify.lab.trainer.loop_parts import pick_device

    _check_out(out, model, *calibrate, *filter(None, [measure]))
    check_free(model, out, overwrite)
    if bits is not None and most_bytes is not None:
        raise ValueError("give --bits or --bytes, one of them")
    settings = load_compensation(recipe)
    settings = settings if bits is None else replace(settings, bits=bits)
    if tune_steps is not None:
        settings = replace(settings, tune_steps=tune_steps)
    where = str(pick_device(device))
    text = list(map(_read, calibrate))
    measured = None if measure is None else _read(measure)
    know_small_folders(model)
    net, tokenizer = language.language_model(model)
    language.check_storable(net, tokenizer)
    net = net.to(where)
    ids = [language.tokens_of(tokenizer, each) for each in text]

    def cut_into(count: int) -> torch.Tensor:
        each = max(1, count // len(ids))
        return torch.cat([language.windows_of(one, each, length) for one in ids])

    cut = cut_into(windows)
    most = getattr(net.config, "max_position_embeddings", None)
    if most is not None and length > most:
        raise ValueError(f"the model sees {most} tokens; give --length {most} or less")
    counted = language.frequencies_of(ids, cast(Any, net.config).vocab_size)
    tuning_text = cut_into(settings.tune_steps * tune_batch)
    batches = [(window[None].to(where), window[None].to(where)) for window in cut]
    tested = (
        None
        if measured is None
        else language.windows_of(language.tokens_of(tokenizer, measured), 24, length)
    )
    before = None if tested is None else language.perplexity(net, tested)
    columns = TextColumn("{task.description}"), MofNCompleteColumn()
    with _stoppable(keep), Progress(*columns, TimeElapsedColumn()) as shown:
        tasks: dict[str, int] = {}

        def tell(what: str, done: int, all_of_it: int) -> None:
            task = tasks.setdefault(what, -1)
            if task < 0:
                task = tasks[what] = shown.add_task(what, total=all_of_it)
            shown.update(task, completed=done)  # type: ignore[arg-type]

        given: dict[str, Any] = {
            "calibration": Calibration(batches, next_token_loss),
            "tuning": language.shuffled_batches(tuning_text, tune_batch, where),
            "folder": keep,
            "bf16": bf16,
            "tell": tell,
            "frequencies": counted,
        }
        if most_bytes is None:
            packed = compensate_(net, settings, **given)
        else:
            packed = compensate_within_(
                net,
                settings,
                most_bytes,
                size_of=lambda made: (
                    encoded(language.stored(made, net, tokenizer)).size_bytes
                ),
                **given,
            )
    size = tersify.save(language.stored(packed, net, tokenizer), out)
    weights = sum(parameter.numel() for parameter in net.parameters())
    typer.echo(
        f"{out}: {size:,} bytes, {8 * size / weights:.2f} bits a weight, tokenizer and all"
    )
    _tell_dense(packed)
    if tested is not None and before is not None:
        del net, packed  # what is measured is the file
        saved, _ = language.load_language_model(out, max_decoded_bytes=sys.maxsize)
        after = language.perplexity(saved.to(where), tested)
        typer.echo(
            f"perplexity of {measure}: {after:.2f}, {before:.2f} before (×{after / before:.3f})"
        )


def _check_out(out: Path, model: Path, *read: Path) -> None:
    """Whether the file can be written, before hours of work; nothing that is read is
    lost.
    """
    ours = {path.resolve() for path in (*read, *model.glob("*"))}
    if out.resolve() in ours and out.suffix != ".terse":
        raise ValueError(f"--out {out} is read by this command; give it another name")
    out.parent.mkdir(parents=True, exist_ok=True)


def _tell_dense(packed: CompressedModel) -> None:
    """Matrices that are no linear layer's, such as all experts in one tensor."""
    coded = packed.compressed()
    dense = {
        name: tensor.numel()
        for name, tensor in packed.items()
        if name not in coded and len(tensor.shape) > 1
    }
    percent = 100 * sum(dense.values()) / sum(t.numel() for t in packed.values())
    if percent > 1:
        typer.echo(
            f"tersify: {percent:.0f} % of the weights stay as they are, {max(dense, key=lambda n: dense[n])!r} the "
            "largest: linear layers and embeddings are compressed",
            err=True,
        )


@contextlib.contextmanager
def _stoppable(keep: Path | None) -> Iterator[None]:
    """Ctrl-C inside says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        told = (
            "nothing is kept without --keep FOLDER"
            if keep is None
            else f"what is finished is kept in {keep}, and the same command goes on from there"
        )
        typer.echo(f"\nStopped; {told}", err=True)
        raise typer.Exit(INTERRUPTED) from None


def _read(path: Path) -> str:
    if not path.is_file():
        raise ValueError(f"no text file {str(path)!r}")
    return path.read_text(encoding="utf-8", errors="replace")
