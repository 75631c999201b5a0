"""`tersify generate` and `tersify chat`: texts of a language model, as they are made."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from tersify.cli import INTERRUPTED
from tersify.cli.common import MaxDecodedBytes, allowed, know_small_folders

Model = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL", help="A .terse file, a GGUF file or a folder of transformers."
    ),
]
Tokens = Annotated[
    int, typer.Option("--max-new-tokens", min=1, help="Maximum tokens of an answer.")
]
Temperature = Annotated[
    float,
    typer.Option(
        min=0, help="0 takes the likeliest token; higher values sample more freely."
    ),
]
TopP = Annotated[
    float,
    typer.Option(
        help="Draw from the likeliest tokens whose probabilities add up to this."
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the sampled tokens.")]
Precision = Annotated[
    Literal["fp32", "int8"],
    typer.Option(
        help="Precision of the activations; int8 needs weights with few levels."
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(min=1, help="CPU threads; as many as torch uses by default."),
]
Context = Annotated[
    int | None,
    typer.Option(
        min=1, help="The longest text in tokens; the model's own limit by default."
    ),
]


def _open_model(
    model: Path,
    precision: Literal["fp32", "int8"],
    threads: int | None,
    context: int | None,
    max_decoded_bytes: int | None,
) -> tuple[Any, Any]:
    """The network that MODEL names, ready to decode, and its tokenizer."""
    from tersify.lab import texts

    know_small_folders(model)
    with _warnings_in_a_sentence():
        return texts.open_text_model(
            model,
            precision=precision,
            threads=threads,
            context=context,
            **allowed(max_decoded_bytes),
        )


@contextlib.contextmanager
def _warnings_in_a_sentence() -> Iterator[None]:
    """Those of ours, such as that torch runs the model, without a place in the code."""
    with warnings.catch_warnings():
        warnings.simplefilter("default", RuntimeWarning)
        shown = warnings.showwarning

        def show(
            message: Warning | str, category: type[Warning], *place: Any, **more: Any
        ) -> None:
            if category is RuntimeWarning:
                typer.echo(f"tersify: {message}", err=True)
            else:
                shown(message, category, *place, **more)

        warnings.showwarning = show
        yield


def generate(
    model: Model,
    prompt: Annotated[str, typer.Option(help="The text to continue.")],
    max_new_tokens: Tokens = 128,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    seed: Seed = 0,
    precision: Precision = "fp32",
    threads: Threads = None,
    context: Context = None,
    max_decoded_bytes: MaxDecodedBytes = None,
) -> None:
    """Print how MODEL goes on from --prompt."""
    from tersify.lab.texts import pieces

    net, tokenizer = _open_model(model, precision, threads, context, max_decoded_bytes)
    ids = tokenizer(prompt)["input_ids"]
    if not ids:
        raise ValueError("--prompt has no tokens; give some text")
    begin, made = time.perf_counter(), []

    def kept() -> Iterator[int]:
        for token in _stream(
            net, tokenizer, ids, max_new_tokens, temperature, top_p, seed
        ):
            made.append(token)
            yield token

    with _stopped_in_a_sentence():
        for piece in pieces(kept(), tokenizer):
            typer.echo(piece, nl=False)
    seconds = time.perf_counter() - begin
    typer.echo(f"\n[{len(ids)} + {len(made)} tokens in {seconds:.2f} s]", err=True)


def chat(
    model: Model,
    system: Annotated[str | None, typer.Option(help="The system prompt.")] = None,
    max_new_tokens: Tokens = 512,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    seed: Seed = 0,
    precision: Precision = "fp32",
    threads: Threads = None,
    context: Context = None,
    max_decoded_bytes: MaxDecodedBytes = None,
) -> None:
    """Talk with MODEL, line by line; an empty line or the end of the input ends the
    talk.
    """
    net, tokenizer = _open_model(model, precision, threads, context, max_decoded_bytes)
    if not tokenizer.chat_template:
        raise ValueError(
            f"{model} has no chat template: it goes on from texts and does not talk; use tersify generate"
        )
    talk = [] if system is None else [{"role": "system", "content": system}]
    with _stopped_in_a_sentence():
        _talk(net, tokenizer, talk, (max_new_tokens, temperature, top_p, seed))


def _talk(
    net: Any,
    tokenizer: Any,
    talk: list[dict[str, str]],
    settings: tuple[int, float, float, int],
) -> None:
    from tersify.lab.texts import pieces

    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            typer.echo()  # what the shell says next begins a line
            return
        if not line:
            return
        talk.append({"role": "user", "content": line})
        ids = tokenizer.apply_chat_template(
            talk, add_generation_prompt=True, return_dict=True
        )["input_ids"]
        answer = ""
        for piece in pieces(_stream(net, tokenizer, ids, *settings), tokenizer):
            typer.echo(piece, nl=False)
            answer += piece
        typer.echo()
        talk.append({"role": "assistant", "content": answer})


@contextlib.contextmanager
def _stopped_in_a_sentence() -> Iterator[None]:
    """Ctrl-C inside says so on a line of its own."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("\ntersify: stopped", err=True)
        raise typer.Exit(INTERRUPTED) from None


def _stream(
    net: Any,
    tokenizer: Any,
    ids: list[int],
    count: int,
    temperature: float,
    top_p: float,
    seed: int,
) -> Iterator[int]:
    import torch

    from tersify.lab import texts

    return net.stream(
        ids,
        max_new_tokens=count,
        do_sample=temperature > 0,
        temperature=temperature or 1.0,
        top_p=top_p,
        eos_token_id=texts.ends_of(net, tokenizer),
        generator=torch.Generator().manual_seed(seed),
    )
