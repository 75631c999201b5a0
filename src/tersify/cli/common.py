"""What several commands share: flags, KEY=VALUE pairs, recipes by name, and the way out
on Ctrl-C.
"""

from __future__ import annotations

import contextlib
import importlib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tersify.cli import INTERRUPTED
from tersify.cli.completion import networks
from tersify.locks import LOCK
from tersify.toml import read_toml

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tersify.recipe import Recipe

DATA_HELP = "digits, cifar10, cifar100, mnist, polarity, polarity-bytes, a folder or file.py:function."
_REMEDY = "leave --resume out to begin, or give the --out of what was begun"
Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        help="What the network is, where the file does not name a reference network.",
        autocompletion=networks,
    ),
]
TargetOption = Annotated[
    list[str] | None,
    typer.Option("--option", help="KEY=VALUE for --target; repeatable."),
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Let the file choose code that runs here: a file.py:function, timm, torchvision or hf.",
    ),
]
Shape = Annotated[
    str | None,
    typer.Option(
        "--shape", help="One input, such as 3,32,32, where the file does not say."
    ),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace the file at --out.")
]
MaxDecodedBytes = Annotated[
    int | None,
    typer.Option(
        min=1, help="The most memory a .terse file may decode to; 16 GiB by default."
    ),
]


def allowed(max_decoded_bytes: int | None) -> dict[str, Any]:
    """The limit as an argument for the codec, which knows the default."""
    return {} if max_decoded_bytes is None else {"max_decoded_bytes": max_decoded_bytes}


def know_small_folders(model: Path) -> None:
    """Folders that `TersifyConfig` made open as others do."""
    if (model / "config.json").is_file():
        with contextlib.suppress(ImportError):  # told of where it is needed
            importlib.import_module("tersify.integrations.hf_quantizer")


def check_free(file: Path, out: Path, overwrite: bool, *, flag: str = "--out") -> None:
    """`out` may be written: it is not what is read, and nothing of anybody is lost."""
    if out.resolve() == file.resolve():
        raise ValueError(f"{flag} is the file itself, {file}; give it another name")
    if out.is_dir() or (out.exists() and not overwrite):
        remedy = "" if out.is_dir() else ", or add --overwrite to replace it"
        raise ValueError(f"{out} is there already; give another {flag}{remedy}")


def refuse_flags(flags: Mapping[str, object], why: str) -> None:
    """A flag that would change nothing is a mistake of who gave it."""
    if given := [
        flag for flag, value in flags.items() if value not in (None, False, [])
    ]:
        raise ValueError(f"{', '.join(given)} {why}")


def network_and_input(
    file: Path,
    target: str | None,
    option: Sequence[str] | None,
    shape: str | None,
    max_decoded_bytes: int | None,
    *,
    batch: int,
    trust: bool = False,
) -> tuple[nn.Module, Tensor]:
    """The network of a .terse file in eval mode, and `batch` random inputs, as the
    flags say.
    """
    from tersify.lab.random_inputs import network_and_input

    return network_and_input(
        file,
        target=target,
        options=pairs(option, "--option"),
        trust=trusted(target, trust),
        shape=shape,
        batch=batch,
        **allowed(max_decoded_bytes),
    )


def trusted(target: str | None, trust: bool) -> bool:
    if trust and target is not None:
        raise ValueError(
            "--trust lets the file name its network, and --target names one; leave one of them out"
        )
    return trust


def pairs(given: Sequence[str] | None, flag: str) -> dict[str, Any]:
    """`KEY=VALUE` strings; a value is read as TOML (numbers, lists, true), and as text
    where it is none.
    """
    result: dict[str, Any] = {}
    for text in given or ():
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ValueError(
                f"{flag} takes KEY=VALUE, got {text!r}; for example {flag} width=2"
            )
        try:
            result[key.strip()] = read_toml(f"value = {value}", flag)["value"]
        except ValueError:
            result[key.strip()] = value.strip()
    return result


def load_recipe(name: str) -> Recipe | None:
    """A ready recipe's name or a TOML file; `none` trains the network as it is."""
    from tersify.recipe import Recipe

    return None if name == "none" else Recipe.load(name)


def check_begun(out: Path) -> None:
    """There is something that --resume could go on with; what it is, others ask."""
    if out.is_dir() and not _is_begun(out):
        raise ValueError(f"there is nothing to resume, {out} is empty; {_REMEDY}")
    if not out.exists():
        raise ValueError(f"there is nothing to resume, {out} is not there; {_REMEDY}")


def _is_begun(out: Path) -> bool:
    return out.is_dir() and any(path.name != LOCK for path in out.iterdir())


@contextlib.contextmanager
def resumable(context: typer.Context, out: Path) -> Iterator[None]:
    """Ctrl-C inside leaves with the command that goes on from the last checkpoint."""
    try:
        yield
    except KeyboardInterrupt:
        arguments = [a for a in context.obj if a != "--resume"]
        begun = _is_begun(out)
        told = (
            f"finished epochs are kept in {out}. Go on with:"
            if begun
            else "nothing was done yet. Start with:"
        )
        command = [*arguments, *(["--resume"] if begun else [])]
        typer.echo(f"\nStopped; {told}\n  tersify {shlex.join(command)}", err=True)
        raise typer.Exit(INTERRUPTED) from None
