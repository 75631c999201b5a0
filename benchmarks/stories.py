"""stories260K in 4-bit tables: the bytes of the file, and how long its greedy story is
the one that float32 tells.

Calibrates on stories of the model's own; settings were chosen by the divergence on other
stories of its own, never by the story that is compared.

usage: python benchmarks/stories.py --model stories260K.bin [--json FILE]
"""

from __future__ import annotations

import argparse
import copy
import tempfile
from pathlib import Path
from typing import Any

from common import report  # first: it sets what must stand before torch is imported

import torch  # isort: skip
from llama2c import OPENING, load_llama2c
from torch import Tensor

import tersify
from tersify.calibration import Calibration
from tersify.compensated import Compensation, compensate_, next_token_loss
from tersify.compensated.tune import divergence

STORY = 100  # tokens that are compared
DRAWN, HELD_OUT, LENGTH = 64, 16, 200
TABLES = Compensation(
    code="table",
    bits=4.0,
    coded_bits=3.17,
    tune_steps=200,
    tune_rate=0.004,
    tune_codes=True,
)


@torch.no_grad()
def told(model: Any, tokens: int, *, stories: int = 1, draws: bool = False) -> Tensor:
    """Stories from the first token on: the likeliest tokens, or drawn ones."""
    ids: Tensor = torch.ones(stories, 1, dtype=torch.long)
    return model.generate(  # type: ignore[no-any-return]
        ids, max_new_tokens=tokens, do_sample=draws, pad_token_id=0, eos_token_id=None
    )


def small(
    model: Any, settings: Compensation, drawn: Tensor, folder: Path
) -> tuple[Any, float, float]:
    """The compressed model as its file gives it back, the file's bytes, and the most
    levels of a matrix.
    """
    net = copy.deepcopy(model)
    batches = Calibration([(each, each) for each in drawn.split(8)], next_token_loss)
    packed = compensate_(net, settings, calibration=batches)
    path = folder / "stories.terse"
    size = tersify.save(packed, path)
    levels = max(tensor.levels or 0 for tensor in packed.compressed().values())
    return tersify.load(path, into=copy.deepcopy(model)), float(size), float(levels)


def measured(path: Path, folder: Path) -> dict[str, float]:
    model = load_llama2c(path)
    model.generation_config.top_k = 0
    torch.manual_seed(0)
    drawn = told(model, LENGTH, stories=DRAWN, draws=True)
    held_out = told(model, LENGTH, stories=HELD_OUT, draws=True)
    before = told(model, STORY)[0]
    assert tuple(before[: len(OPENING)].tolist()) == OPENING
    with torch.no_grad():
        wanted = model(held_out).logits
    figures = {"fp32_file_bytes": float(path.stat().st_size)}
    net, size, levels = small(model, TABLES, drawn, folder)
    differ = (before != told(net, STORY)[0]).nonzero()
    with torch.no_grad():
        lost = float(divergence(net(held_out).logits, wanted))
    figures |= {
        "table4_file_bytes": size,
        "table4_levels": levels,
        "table4_same_tokens": float(int(differ[0]) - 1 if len(differ) else STORY),
        "table4_divergence_nats": lost,
    }
    print({k: round(v, 4) for k, v in figures.items()})
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measured(given.model, Path(folder))
    report(
        "stories",
        figures,
        json_path=given.json,
        versions={"torch": torch.__version__},
        story_tokens=STORY,
    )


if __name__ == "__main__":
    main()
