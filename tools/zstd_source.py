"""zstd as one source file, for compilers of other machines: zstd_source.py [FOLDER].

It comes with the source archive of the Python package `zstandard` that constraints.txt
names, and lands in build/zstd unless another folder is given.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILES = ("zstd.c", "zstd.h", "zstd_errors.h")


def fetch(folder: Path) -> None:
    if all((folder / name).is_file() for name in FILES):
        return
    constraints = (ROOT / "constraints.txt").read_text()
    wanted = re.search(r"^zstandard==\S+", constraints, re.MULTILINE)
    assert wanted is not None, "constraints.txt names no zstandard"
    with tempfile.TemporaryDirectory() as down:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps"]
        command += ["--no-binary", "zstandard", "--dest", down, wanted[0]]
        subprocess.run(command, check=True)
        (archive,) = Path(down).glob("*.tar.gz")
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(archive) as tar:
            for name in FILES:
                member = f"{archive.name.removesuffix('.tar.gz')}/zstd/{name}"
                found = tar.extractfile(member)
                assert found is not None, f"the archive has no {member}"
                (folder / name).write_bytes(found.read())


if __name__ == "__main__":
    fetch(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "zstd")
