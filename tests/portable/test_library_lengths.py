"""libtersify and tersify-run with a free length: what Python makes of every length, and a
sentence for those that the plan does not run.
"""

from __future__ import annotations

import ctypes
import json
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
import zstandard
from library import (
    BAD_ARGUMENT,
    BAD_FILE,
    TOO_LARGE,
    LibraryError,
    Network,
    built,
    check,
    library,
)
from test_plan_lengths import LENGTHS, seeded

import tersify
from tersify import codec
from tersify.codec.container import Sections
from tersify.codec.writer import add_plan
from tersify.runtime.portable import Replay, read_program

pytestmark = pytest.mark.long  # builds the library


class OfLengths(Network):
    """The axis of the length is the one that is not the batch and not fixed."""

    length = 0

    def output_shape(self, batch: int) -> tuple[int, ...]:
        return self.sizes(batch, self.length)

    def sizes(self, batch: int, length: int) -> tuple[int, ...]:
        made = (ctypes.c_int64 * 32)()
        numbers = (ctypes.c_int64(batch), ctypes.c_int64(length))
        check(
            library().tersify_sizes(self._model, 1, ctypes.c_size_t(0), *numbers, made)
        )
        return tuple(size for size in made if size)

    def lengths(self) -> tuple[int, ...]:
        made = (ctypes.c_int64 * 3)()
        check(library().tersify_lengths(self._model, made))
        return tuple(made)

    def of(self, x: np.ndarray, length: int) -> np.ndarray:
        self.length = length
        return self.run(x)


def saved(name: str, path: Path) -> OfLengths:
    model, example, first, other = seeded(name)
    tersify.save(model, path, example=example(2, first), other=example(2, other))
    return OfLengths(path.read_bytes())


@pytest.mark.parametrize("name", LENGTHS)
def test_the_library_runs_any_length_with_the_bits_of_python(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / "net.terse"
    network = saved(name, path)
    model, example, first, other = seeded(name)
    file = codec.open(path)
    replay = Replay(read_program(file), file)
    least, step, _ = network.lengths()
    for length in (least, first, first + step, other):
        for batch in (1, 3):
            x = example(batch, length)
            made = network.of(x.numpy(), length)
            assert np.array_equal(made, replay.run([x])[0].numpy())
            with torch.no_grad():
                assert np.abs(made - model(x).numpy()).max() <= 1e-5


def test_a_session_that_meets_many_lengths_forgets_the_oldest_and_goes_on(
    tmp_path: Path,
) -> None:
    network = saved("lstm", tmp_path / "net.terse")
    _, example, first, _ = seeded("lstm")
    x = example(1, 60).numpy()
    before = network.of(x[:, :first], first)
    for length in range(2, 60):
        network.of(x[:, :length], length)
    assert np.array_equal(network.of(x[:, :first], first), before)


def test_a_length_that_the_plan_does_not_run_is_a_code_and_a_sentence(
    tmp_path: Path,
) -> None:
    network = saved("strided", tmp_path / "net.terse")
    _, example, _, _ = seeded("strided")
    assert network.lengths()[1] == 4
    for act in (
        lambda: network.sizes(1, 19),
        lambda: network.of(example(1, 18).numpy()[..., :17], 18),
    ):
        with pytest.raises(LibraryError, match=r"lengths of \d+ to \d+ in steps of 4"):
            act()
    places = saved("places", tmp_path / "net.terse")
    with pytest.raises(LibraryError, match="to 40 in steps of 1, got 41") as caught:
        places.sizes(1, 41)
    assert caught.value.code == BAD_ARGUMENT


@pytest.mark.parametrize(
    ("size", "code"),
    [
        ({"terms": [[1, 0, 1]], "over": 7}, BAD_FILE),
        ({"terms": [[-1, 0, 1]]}, BAD_FILE),
        ({"terms": [[1, 0, 5]]}, BAD_FILE),
        ({"terms": [[1, 0, 1]], "over": 0}, BAD_FILE),
        ({"terms": []}, BAD_FILE),
        ({"terms": [[1, 0, 1]] * 17}, BAD_FILE),
        ({"terms": [[2**48, 4, 4]]}, TOO_LARGE),
        ({"terms": [[2**40, 0, 0]]}, TOO_LARGE),
        ({"of": 3}, BAD_FILE),
    ],
)
def test_a_hostile_polynomial_is_refused_before_a_kernel_sees_it(
    size: dict[str, object], code: int, tmp_path: Path
) -> None:
    path, broken = tmp_path / "net.terse", tmp_path / "broken.terse"
    saved("lstm", path)
    whole = zstandard.ZstdDecompressor().decompress(codec.open(path).section("plan"))
    (length,) = struct.unpack_from("<Q", whole)
    plain, numbers = json.loads(whole[8 : 8 + length]), whole[8 + length :]
    call = next(call for call in plain["calls"] if call[0] == "view")
    call[3][0] = size
    text = json.dumps(plain).encode()
    text += b" " * (-len(text) % 8)
    section = zstandard.ZstdCompressor().compress(
        struct.pack("<Q", len(text)) + text + numbers
    )
    add_plan(Sections(path), broken, section)
    with pytest.raises(LibraryError) as caught:
        OfLengths(broken.read_bytes())
    assert caught.value.code == code


def test_the_static_program_takes_inputs_of_any_length(tmp_path: Path) -> None:
    program = built() / "csrc" / "run" / "tersify-run"
    path = tmp_path / "net.terse"
    network = saved("convolutions", path)
    _, example, _, _ = seeded("convolutions")
    for length in (12, 31):
        x = example(2, length).numpy()
        np.save(tmp_path / "in.npy", x)
        given = [program, path, tmp_path / "in.npy", tmp_path / "out.npy"]
        subprocess.run(given, check=True)
        assert np.array_equal(np.load(tmp_path / "out.npy"), network.of(x, length))
    np.save(tmp_path / "in.npy", np.zeros((2, 5, 12), np.float32))
    refused = subprocess.run(
        [program, path, tmp_path / "in.npy"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "takes batch×4×length, got 2×5×12" in refused.stderr
