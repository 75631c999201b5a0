"""The texts of lm_quality.py: three kinds, each split into what calibrates, what is
held out to choose settings by, and what measures.
"""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tersify.lab import language

KINDS = ("wikitext", "code", "prose")
LEAST_MODULE_BYTES = 8000
HELD_OUT = 5  # one of so many
OWN_START = 4  # tokens of a text that the model goes on from


@dataclass(frozen=True, kw_only=True)
class Split:
    """One kind of text in three parts."""

    calibrating: str
    held_out: str
    test: str


def texts(wikitext: Path, books: Path) -> dict[str, Split]:
    """WikiText-2, the larger modules of Python's standard library, and the four books
    of the Canterbury corpus.
    """
    return {
        "wikitext": wikitext_texts(wikitext),
        "code": code_texts(),
        "prose": Split(
            calibrating=_read(books / "lcet10.txt")
            + "\n"
            + _read(books / "plrabn12.txt"),
            held_out=_read(books / "asyoulik.txt"),
            test=_read(books / "alice29.txt"),
        ),
    }


def wikitext_texts(folder: Path) -> Split:
    valid = _read(folder / "wikitext2_valid.txt")
    cut = int(len(valid) * (1 - 1 / HELD_OUT))
    return Split(
        calibrating=valid[:cut],
        held_out=valid[cut:],
        test=_read(folder / "wikitext2_test.txt"),
    )


def code_texts() -> Split:
    folder = Path(sysconfig.get_paths()["stdlib"])
    modules = sorted(
        path for path in folder.glob("*.py") if path.stat().st_size > LEAST_MODULE_BYTES
    )
    even, odd = modules[0::2], modules[1::2]
    kept = [path for i, path in enumerate(even) if i % HELD_OUT != HELD_OUT - 1]
    calibrating, held_out, test = (
        "\n".join(path.read_text(errors="replace") for path in part)
        for part in (kept, even[HELD_OUT - 1 :: HELD_OUT], odd)
    )
    return Split(calibrating=calibrating, held_out=held_out, test=test)


def _read(path: Path) -> str:
    return path.read_bytes().decode(errors="replace")


@torch.no_grad()
def own_text(model: Any, ids: Tensor, windows: int, *, bf16: bool) -> Tensor:
    """Windows that the model itself draws, each from the first tokens of a place in a
    text.
    """
    places = torch.Generator().manual_seed(2)
    starts = torch.randint(0, len(ids) - OWN_START, (windows,), generator=places)
    prompt = torch.stack([ids[i : i + OWN_START] for i in starts.tolist()])
    prompt = prompt.to(model.device)
    torch.manual_seed(0)
    with torch.autocast(model.device.type, torch.bfloat16, enabled=bf16):
        told: Tensor = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=language.LENGTH - OWN_START,
            min_new_tokens=language.LENGTH - OWN_START,
            do_sample=True,
            top_k=0,
            top_p=1.0,
            temperature=1.0,
            pad_token_id=0,
        )
    return told.cpu()
