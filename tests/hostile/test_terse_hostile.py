"""Broken and malicious `.terse` files: the error, never a crash, a hang, a wrong weight
or much memory.
"""

import tracemalloc
from pathlib import Path

import pytest
from terse_fuzz import run
from terse_seeds import seeds

from tersify.codec import TerseFileError, open

FILES = sorted((Path(__file__).parent / "files").glob("*.terse"))


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_a_kept_hostile_file_is_refused(path):
    tracemalloc.start()
    try:
        with pytest.raises(TerseFileError):
            open(path, max_decoded_bytes=1 << 20).read()
        assert tracemalloc.get_traced_memory()[1] < 1 << 23
    finally:
        tracemalloc.stop()


def test_ten_seconds_of_fuzzing_break_no_rule(tmp_path):
    counts = run(4000, seed=7, keep=tmp_path)
    assert counts["refused"] > 2000


def test_any_single_flipped_bit_is_noticed_or_harmless(tmp_path):
    data = seeds(tmp_path)[0]
    path = tmp_path / "flipped.terse"
    path.write_bytes(data)
    good = dict(open(path))
    for at in range(0, len(data) * 8, 41):
        flipped = bytearray(data)
        flipped[at // 8] ^= 1 << at % 8
        path.write_bytes(flipped)
        try:
            read = dict(open(path))
        except TerseFileError:
            continue
        assert read["a.weight"].equal(good["a.weight"])
        assert read["bn.bias"].equal(good["bn.bias"])


def test_a_file_cut_anywhere_is_refused(tmp_path):
    data = seeds(tmp_path)[0]
    path = tmp_path / "cut.terse"
    for end in range(0, len(data), 13):
        path.write_bytes(data[:end])
        with pytest.raises(TerseFileError):
            open(path)
