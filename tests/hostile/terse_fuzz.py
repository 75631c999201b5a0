"""Opens broken files by the hundred thousand: `python tests/hostile/terse_fuzz.py
--files 200000`.

Only `TerseFileError` may come out; never a crash, a hang, a wrong weight or more memory
than allowed. With `--extension` the coders come from that file (a sanitizer build). A
file that breaks a rule is written to `--keep`, for tests/hostile.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import importlib.util
import random
import resource
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch
from terse_mutations import mutate
from terse_seeds import seeds

from tersify.codec import TerseFileError, native, open
from tersify.tensor import CompressedTensor

MAX_DECODED_BYTES = 1 << 20
MEMORY_SLACK_BYTES = 1 << 26
SECONDS_PER_FILE = 20

Contents = dict[str, "CompressedTensor | torch.Tensor"]


def use_extension(path: str) -> None:
    spec = importlib.util.spec_from_file_location("tersify._codec", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules["tersify._codec"] = module


def contents(path: Path) -> Contents:
    return dict(open(path, max_decoded_bytes=MAX_DECODED_BYTES).read(threads=1))


def same(a: Contents, b: Contents) -> bool:
    if list(a) != list(b):
        return False
    return all(
        x.equal(y)
        if isinstance(x, CompressedTensor) and isinstance(y, CompressedTensor)
        else isinstance(x, torch.Tensor)
        and isinstance(y, torch.Tensor)
        and x.dtype == y.dtype
        and x.reshape(-1).view(torch.uint8).equal(y.reshape(-1).view(torch.uint8))
        for x, y in zip(a.values(), b.values(), strict=True)
    )


def run(
    files: int, seed: int, keep: Path, *, limit_memory: bool = True
) -> dict[str, int]:
    """How many files were refused and accepted; raises on the first one that breaks a
    rule.
    """
    rng = random.Random(seed)
    counts = {"refused": 0, "accepted": 0}
    with tempfile.TemporaryDirectory() as folder:
        keep.mkdir(parents=True, exist_ok=True)
        # a sanitizer ends the process and leaves it behind
        path = keep / "current.terse"
        good = [(data, contents(_write(path, data))) for data in seeds(Path(folder))]
        decoders = _decoders()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(files):
            data, expected = rng.choice(good)
            broken, whole = mutate(data, rng)
            _write(path, broken)
            signal.alarm(SECONDS_PER_FILE)
            try:
                with mock.patch.object(
                    native, "extension", return_value=rng.choice(decoders)
                ):
                    read = contents(path)
            except TerseFileError:
                counts["refused"] += 1
            except BaseException:
                _keep(keep, broken)
                raise
            else:
                counts["accepted"] += 1
                if whole and not same(read, expected):
                    raise AssertionError(
                        f"a changed weight was not noticed: {_keep(keep, broken)}"
                    )
            finally:
                signal.alarm(0)
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
            if limit_memory and grown > MEMORY_SLACK_BYTES:
                raise AssertionError(f"{grown} bytes of memory: {_keep(keep, broken)}")
    path.unlink()
    return counts


def _decoders() -> list[SimpleNamespace | None]:
    """The coders once for every path of this machine; None, where they are missing, is
    the reference.
    """
    compiled = native.extension()
    if compiled is None:
        return [None]
    return [
        SimpleNamespace(
            Malformed=compiled.Malformed,
            decode_codes=functools.partial(compiled.decode_codes, path=path),
            join_planes=functools.partial(compiled.join_planes, path=path),
            unpack_codes=compiled.unpack_codes,
            merge_split=compiled.merge_split,
        )
        for path in compiled.paths()
    ]


def _write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def _keep(folder: Path, data: bytes) -> Path:
    return _write(folder / f"{hashlib.sha256(data).hexdigest()[:12]}.terse", data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--extension", help="the compiled coders to test")
    parser.add_argument("--keep", type=Path, default=Path("build/fuzz-found"))
    parser.add_argument(
        "--no-memory-limit",
        action="store_true",
        help="for sanitizers, which keep freed memory",
    )
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.extension:
        use_extension(chosen.extension)
    start = time.monotonic()
    counts = run(
        chosen.files, chosen.seed, chosen.keep, limit_memory=not chosen.no_memory_limit
    )
    print(
        f"{chosen.files} files: {counts['refused']} refused, {counts['accepted']} accepted",
        end="",
    )
    print(f" in {time.monotonic() - start:.0f} s; no rule broken")


if __name__ == "__main__":
    main()
