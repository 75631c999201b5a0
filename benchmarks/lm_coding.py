"""What the codes of a language model take in its file, beside the entropy that was
predicted for them in the contexts of rows and columns.

usage: python benchmarks/lm_coding.py FILE.terse [--json FILE]

The file is one that `tersify compress-lm` or lm_quality.py wrote. Its tensors are saved
anew, so that the figures are those of this version's coder.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from common import report  # first: it sets what must stand before torch is imported

import torch  # isort: skip
from lm_quality import code_bytes, predicted_bytes

import tersify


def measured(path: Path, folder: Path) -> dict[str, float]:
    packed = tersify.open(path).read()
    begin = time.process_time()
    tersify.save(packed, folder / "anew.terse")
    seconds = time.process_time() - begin
    anew = tersify.open(folder / "anew.terse").read()
    assert all(packed[name].equal(each) for name, each in anew.compressed().items())
    predicted, written = predicted_bytes(packed), code_bytes(folder / "anew.terse")
    return {
        "predicted_code_bytes": predicted,
        "code_bytes": float(written),
        "codes_over_entropy_percent": 100 * (written / predicted - 1),
        "code_bytes_in_the_given_file": float(code_bytes(path)),
        "save_cpu_s": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        figures = measured(given.file, Path(temporary))
    for name, value in figures.items():
        print(f"{name:32} {value:,.3f}")
    versions = {"torch": torch.__version__}
    report("lm-coding", figures, json_path=given.json, versions=versions)


if __name__ == "__main__":
    main()
