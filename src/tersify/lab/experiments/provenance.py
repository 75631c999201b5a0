"""Where a figure comes from: machine, versions and commit."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

import tersify


def provenance() -> dict[str, Any]:
    """`{"command", "commit", "machine", "versions"}` of this process; the commit is
    None outside a checkout.
    """
    return {
        "command": command(),
        "commit": commit(Path(__file__).parent),
        "machine": machine(),
        "versions": versions(),
    }


def command() -> str:
    """What was called, with paths below this folder as they were given and of others
    their names alone.
    """
    words = []
    for word in sys.argv:
        path = Path(word)
        words.append(path.name if path.is_absolute() else word)
    return shlex.join(words)


def machine() -> dict[str, Any]:
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpus": gpus,
    }


def versions() -> dict[str, str | None]:
    return {
        "tersify": tersify.__version__,
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
    }


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    told = dict(line.split("\t", 1) for line in lines if "\t" in line)
    name, family, model = (
        told.get(key, "").strip(": \t") for key in ("model name", "cpu family", "model")
    )
    if not name:
        return platform.machine()
    # A virtual machine may tell every generation by one name.
    return f"{name} (family {family}, model {model})" if family else name


def commit(folder: Path) -> str | None:
    """The commit checked out in `folder`, marked where files differ from it.

    A copy of another checkout is told its commit in TERSIFY_COMMIT. None where nobody
    knows it.
    """
    told = os.environ.get("TERSIFY_COMMIT")
    if told:
        return told
    try:
        head = _git(folder, "rev-parse", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{head}+changes" if changed else head


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=10,
    )
    return done.stdout.strip()
