"""libtersify: the bits of the Python runtime, errors as codes with a sentence, hostile
plans refused.
"""

from __future__ import annotations

import ctypes
import json
import random
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
    NO_PLAN,
    NOT_FINITE,
    TOO_LARGE,
    LibraryError,
    Network,
    built,
    check,
    library,
)
from plan_networks import little_cnn, networks, packed
from ternary_networks import ternary_networks

import tersify
from tersify import codec
from tersify.codec import directory
from tersify.codec.container import Sections
from tersify.codec.entries import Entry
from tersify.codec.writer import add_plan
from tersify.runtime.extension import extension
from tersify.runtime.portable import Replay, read_program

pytestmark = pytest.mark.long  # builds the library
NETWORKS = networks()
# lanes of fp16 are no part of the library: no plan asks for them
ISAS = [isa for isa in extension().isas() if isa != "avx512fp16"]  # type: ignore[union-attr]
SAME_BITS = {
    **ternary_networks(),
    "a block": (NETWORKS["ternary"][0], (3, 12, 12)),
    "pools": (little_cnn(), (3, 12, 12)),
}


def file_of(name: str, folder: Path, *, int8: bool = False) -> Path:
    model, example = NETWORKS[name]
    path = folder / f"{name}.terse"
    more = {"plan": "int8", "calibration": example} if int8 else {"plan": "fp32"}
    tersify.save(packed(model), path, network=model, example=example, **more)  # type: ignore[arg-type]
    return path


@pytest.mark.parametrize("name", NETWORKS)
def test_the_library_has_the_bits_of_the_python_runtime(
    name: str, tmp_path: Path
) -> None:
    path = file_of(name, tmp_path)
    _, example = NETWORKS[name]
    file = codec.open(path)
    network = Network(path.read_bytes())
    for batch in (1, 2, 3):
        given = torch.cat([example] * 2)[:batch].contiguous()
        (wanted,) = Replay(read_program(file), file).run([given])
        assert np.array_equal(network.run(given.numpy()), wanted.numpy())


@pytest.mark.parametrize("name", SAME_BITS)
def test_int8_has_the_same_bits_with_every_instruction_set_and_batch(
    name: str, tmp_path: Path
) -> None:
    model, shape = SAME_BITS[name]
    given = torch.randn(37, *shape, generator=torch.Generator().manual_seed(7))
    path = tmp_path / "net.terse"
    tersify.save(
        packed(model),
        path,
        network=model,
        example=given[:2],
        plan="int8",
        calibration=given,
    )
    file = codec.open(path)
    program = read_program(file)
    assert program.precision == "int8"
    (wanted,) = Replay(program, file).run([given])
    for isa in ISAS:
        network = Network(path.read_bytes(), isa=isa)
        for batch in (1, 5, 37):
            parts = [network.run(part.numpy()) for part in given.split(batch)]
            assert np.array_equal(np.concatenate(parts), wanted.numpy()), (isa, batch)


@pytest.mark.parametrize("isa", ISAS)
def test_int8_has_the_same_bits_with_every_instruction_set(
    isa: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERSIFY_ISA", isa)
    path = file_of("ternary", tmp_path, int8=True)
    _, images = NETWORKS["ternary"]
    file = codec.open(path)
    (wanted,) = Replay(read_program(file), file).run([images])
    assert np.array_equal(
        Network(path.read_bytes(), isa=isa, threads=2).run(images.numpy()),
        wanted.numpy(),
    )


def test_what_goes_wrong_is_a_code_and_a_sentence(tmp_path: Path) -> None:
    path = file_of("ternary", tmp_path)
    _, images = NETWORKS["ternary"]
    codec.save(packed(NETWORKS["ternary"][0]), tmp_path / "plain.terse")
    cases = [
        (
            lambda: Network((tmp_path / "plain.terse").read_bytes()),
            NO_PLAN,
            "tersify plan",
        ),
        (lambda: Network(b"no file at all"), BAD_FILE, "header"),
        (lambda: Network(path.read_bytes()[:-9]), BAD_FILE, "end"),
        (lambda: Network(path.read_bytes(), max_bytes=1000), TOO_LARGE, "limit"),
        (lambda: Network(path.read_bytes(), isa="z80"), BAD_ARGUMENT, "z80"),
        (
            lambda: Network(path.read_bytes()).run(images.numpy()[:, :, :5]),
            BAD_ARGUMENT,
            "numbers",
        ),
        (
            lambda: Network(path.read_bytes()).run(images.numpy() * np.float32("nan")),
            NOT_FINITE,
            "NaN",
        ),
    ]
    for act, code, words in cases:
        with pytest.raises(LibraryError, match=words) as caught:
            act()
        assert caught.value.code == code


def test_a_batch_that_is_too_large_is_told_with_the_largest(tmp_path: Path) -> None:
    network = Network(file_of("ternary", tmp_path).read_bytes())
    with pytest.raises(LibraryError, match=f"1 to {1 << 24}, got {1 << 40}") as caught:
        check(
            library().tersify_run(network._session, ctypes.c_int64(1 << 40), b"", b"")
        )
    assert caught.value.code == BAD_ARGUMENT


def _mutated(plain: dict[str, object], rng: random.Random) -> dict[str, object]:
    """The plan with a few of its parts exchanged, repeated, cut or replaced by odd
    numbers.
    """
    text = json.dumps(plain)
    made = json.loads(text)
    for _ in range(rng.randint(1, 3)):
        node: object = made
        for _ in range(rng.randint(1, 8)):
            keys = (
                list(node)
                if isinstance(node, dict)
                else list(range(len(node)))
                if isinstance(node, list)
                else []
            )
            if not keys:
                break
            key = rng.choice(keys)
            child = node[key]  # type: ignore[index]
            if not isinstance(child, (list, dict)) or not child or rng.random() < 0.2:
                odd = rng.choice(
                    [
                        0,
                        -1,
                        1,
                        2,
                        7,
                        255,
                        65535,
                        2**31 - 1,
                        2**31,
                        2**40,
                        -(2**33),
                        None,
                        True,
                        "conv",
                        [],
                        [1, 2],
                    ]
                )
                node[key] = odd  # type: ignore[index]
                break
            node = child
    return made


def test_hostile_plans_are_refused_or_run_and_never_end_the_process(
    tmp_path: Path,
) -> None:
    rng = random.Random(0)
    refused = 0
    for name in NETWORKS:
        path, broken = file_of(name, tmp_path), tmp_path / "broken.terse"
        whole = zstandard.ZstdDecompressor().decompress(
            codec.open(path).section("plan")
        )
        (length,) = struct.unpack_from("<Q", whole)
        plain, numbers = json.loads(whole[8 : 8 + length]), whole[8 + length :]
        given = NETWORKS[name][1].numpy()
        for _ in range(150):
            text = json.dumps(_mutated(plain, rng)).encode()
            text += b" " * (-len(text) % 8)
            section = zstandard.ZstdCompressor(level=1).compress(
                struct.pack("<Q", len(text)) + text + numbers
            )
            add_plan(Sections(path), broken, section)
            try:
                Network(broken.read_bytes(), max_bytes=1 << 26).run(given)
            except LibraryError:
                refused += 1
    assert refused > 300


@pytest.mark.parametrize(
    "same",
    [
        "first.weight",
        ["wide.weight"],
        ["wide.weight", 0, 1],
        ["wide.weight", 1, 0, 2],
        ["first.weight", 1, 0],
        ["back.weight", 1, 0],
        [],
    ],
)
def test_views_that_do_not_fit_are_refused(
    same: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = directory.entry_to_json

    def told_wrongly(entry: Entry) -> dict[str, object]:
        made = told(entry)
        return made | {"e": same} if entry.name == "back.weight" else made

    monkeypatch.setattr(directory, "entry_to_json", told_wrongly)
    path = file_of("shares", tmp_path)
    with pytest.raises(LibraryError) as problem:
        Network(path.read_bytes())
    assert problem.value.code == BAD_FILE
    with pytest.raises(codec.TerseFileError):
        codec.open(path)


def test_the_static_program_reads_npy_and_png_and_writes_what_the_library_makes(
    tmp_path: Path,
) -> None:
    program = built() / "csrc" / "run" / "tersify-run"
    path = file_of("ternary", tmp_path)
    _, images = NETWORKS["ternary"]
    np.save(tmp_path / "in.npy", images.numpy())
    subprocess.run(
        [program, path, tmp_path / "in.npy", tmp_path / "out.npy"], check=True
    )
    made = np.load(tmp_path / "out.npy")
    assert np.array_equal(made, Network(path.read_bytes()).run(images.numpy()))
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (12, 12, 3), np.uint8)
    image.fromarray(pixels).save(tmp_path / "in.png")
    subprocess.run(
        [program, path, tmp_path / "in.png", tmp_path / "out.npy"], check=True
    )
    wanted = Network(path.read_bytes()).run(
        (pixels.transpose(2, 0, 1)[None] / np.float32(255)).astype(np.float32)
    )
    assert np.array_equal(np.load(tmp_path / "out.npy"), wanted)
    broken = subprocess.run(
        [program, path, tmp_path / "nothing.npy"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert broken.returncode == 1
    assert "nothing.npy cannot be opened" in broken.stderr
