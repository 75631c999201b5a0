"""Hostile plans through libtersify, built with sanitizers: plan_fuzz.py PROGRAM N [SEED].

Each file is a sound one whose plan has a few parts exchanged, repeated, cut or replaced,
or bytes turned. The same seed makes the same files; where the program ends with a report,
the seed of the file is told.
"""

from __future__ import annotations

import json
import random
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zstandard

import tersify
from tersify import codec
from tersify.codec.container import Sections, header_of
from tersify.codec.writer import PLAN, VERSION

sys.path.append(str(Path(__file__).resolve().parents[1] / "portable"))
from plan_networks import little_cnn, networks, packed  # type: ignore[import-not-found]
from test_plan_lengths import LENGTHS, seeded  # type: ignore[import-not-found]

ODD: list[Any] = [
    0,
    -1,
    1,
    2,
    3,
    7,
    8,
    255,
    256,
    65535,
    65536,
    2**31 - 1,
    2**31,
    2**40,
    -(2**33),
]
ODD += [None, True, False, "conv", "", [], [1, 2], {}, 0.5, 1e300, -1e-300]
ODD += [{"terms": [[1, 0, 1]]}, {"terms": [[1, 1, 2], [-3, 0, 1]], "over": 3}]
ODD += [{"terms": [[2**40, 1, 4]]}, {"terms": [[-(2**48), 4, 4]]}, {"terms": [[]]}]
CODES = "fine, unread, bad file, no plan, bad argument, too large, not finite, no memory, internal"
PIECE = 2000  # files for one process: a limit of what its end hides


class Sound:
    """A file, its plan as text and numbers, and how to put another in."""

    def __init__(self, path: Path) -> None:
        whole = zstandard.ZstdDecompressor().decompress(
            codec.open(path).section("plan")
        )
        (length,) = struct.unpack_from("<Q", whole)
        self.text, self.numbers = whole[8 : 8 + length], whole[8 + length :]
        file = Sections(path)
        self._kept = {name: file.read(name) for name in file.names() if name != PLAN}

    def with_plan(self, text: bytes, numbers: bytes) -> bytes:
        text += b" " * (-len(text) % 8)
        whole = struct.pack("<Q", len(text)) + text + numbers
        plan = zstandard.ZstdCompressor(level=1).compress(whole)
        sections = self._kept | {PLAN: plan}
        return header_of(sections, VERSION) + b"".join(sections.values())


def sound_files(folder: Path) -> list[Sound]:
    zoo = networks()
    zoo["pooled"] = (little_cnn(), zoo["ternary"][1])
    made = []
    for name, (model, example) in zoo.items():
        for precision in ("fp32", "int8"):
            if precision == "int8" and name not in ("ternary", "pooled"):
                continue
            path = folder / f"{name}-{precision}.terse"
            more: dict[str, Any] = {"plan": precision}
            if precision == "int8":
                more["calibration"] = example
            tersify.save(packed(model), path, network=model, example=example, **more)
            made.append(Sound(path))
    for name in LENGTHS:  # of a free length, and of a batch that is a polynomial
        model, example, first, other = seeded(name)
        path = folder / f"{name}-lengths.terse"
        given = {"example": example(2, first), "other": example(2, other)}
        tersify.save(model, path, **given)
        made.append(Sound(path))
    return made


def _places(node: Any) -> list[Any]:
    if isinstance(node, dict):
        return list(node)
    return list(range(len(node))) if isinstance(node, list) else []


def _some_place(plan: Any, rng: random.Random) -> tuple[Any, Any]:
    """A container in the plan and a key of it."""
    node, key = plan, rng.choice(_places(plan))
    while _places(node[key]) and rng.random() < 0.85:
        node, key = node[key], rng.choice(_places(node[key]))
    return node, key


def _exchange(plan: Any, rng: random.Random) -> None:
    (a, i), (b, j) = _some_place(plan, rng), _some_place(plan, rng)
    a[i], b[j] = json.loads(json.dumps(b[j])), json.loads(json.dumps(a[i]))


def _replace(plan: Any, rng: random.Random) -> None:
    node, key = _some_place(plan, rng)
    node[key] = json.loads(json.dumps(rng.choice(ODD)))  # a list of its own


def _nudge(plan: Any, rng: random.Random) -> None:
    node, key = _some_place(plan, rng)
    if type(node[key]) is int:
        node[key] += rng.choice((-2, -1, 1, 2, 64, 1 << 16))


def _repeat(plan: Any, rng: random.Random) -> None:
    node, key = _some_place(plan, rng)
    if isinstance(node, list):
        copies = rng.choice((1, 1, 2, 40))
        node[key:key] = json.loads(json.dumps([node[key]] * copies))


def _cut(plan: Any, rng: random.Random) -> None:
    node, key = _some_place(plan, rng)
    del node[key]


MUTATIONS: list[Callable[[Any, random.Random], None]]
MUTATIONS = [_exchange, _replace, _replace, _nudge, _nudge, _repeat, _cut]


def hostile(sounds: list[Sound], seed: int) -> bytes:
    rng = random.Random(seed)
    sound = rng.choice(sounds)
    text, numbers = sound.text, bytearray(sound.numbers)
    if rng.random() < 0.1:  # what is no JSON, or other JSON
        turned = bytearray(text)
        for _ in range(rng.randint(1, 4)):
            turned[rng.randrange(len(turned))] = rng.choice(
                b'[]{},:"-0123456789e. \x00\xff'
            )
        text = bytes(turned)
    else:
        plan = json.loads(text)
        for _ in range(rng.randint(1, 4)):
            rng.choice(MUTATIONS)(plan, rng)
            if not _places(plan):
                break
        text = json.dumps(plan).encode()
    for _ in range(rng.choice((0, 0, 1, 8))):  # NaN, infinity, and any other bits
        numbers[rng.randrange(len(numbers))] = rng.choice((0, 0x7F, 0x80, 0xFF))
    return sound.with_plan(text, bytes(numbers[: len(numbers) // 4 * 4]))


def main(program: str, count: int, seed: int) -> int:
    totals: list[int] = [0] * 9
    with tempfile.TemporaryDirectory() as folder:
        sounds = sound_files(Path(folder))
        for first in range(seed, seed + count, PIECE):
            seeds = range(first, min(first + PIECE, seed + count))
            process = subprocess.Popen(
                [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            assert process.stdin is not None
            assert process.stdout is not None
            sent = first
            try:
                for sent in seeds:
                    file = hostile(sounds, sent)
                    process.stdin.write(struct.pack("<Q", len(file)) + file)
                    process.stdin.flush()
                process.stdin.close()
            except BrokenPipeError:
                pass
            told = process.stdout.read().split()
            if process.wait() or len(told) != len(totals):
                print(f"the program ended at a file of seeds {first}..{sent}")
                return 1
            totals = [a + int(b) for a, b in zip(totals, told, strict=True)]
            print(f"{sum(totals)} files so far: {totals}", file=sys.stderr, flush=True)
    print(f"{sum(totals)} files, no report: {totals} ({CODES})")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(*sys.argv[3:4] or ["0"])))
