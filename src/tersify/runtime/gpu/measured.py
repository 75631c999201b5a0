"""What layers cost on this GPU: measured when a network is compiled, and kept in a
cache file.
"""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from tersify.codec.atomic import replacing
from tersify.runtime.costs import cache_folder
from tersify.runtime.gpu.nvrtc import SOURCES
from tersify.runtime.gpu.timing import microseconds

Work = Callable[[], object]
Stopwatch = Callable[[Sequence[Work]], float]


class Measured:
    """Microseconds by name. `stopwatch` gives the time of one of several works that
    differ only in their memory.
    """

    def __init__(self, path: Path | None, stopwatch: Stopwatch = microseconds) -> None:
        self._path = path
        self._stopwatch = stopwatch
        self._known = {} if path is None else _read(path)
        self._new = False

    def of(self, name: str, works: Callable[[], Sequence[Work]]) -> float:
        """Known from earlier, or measured now."""
        if name not in self._known:
            self._known[name] = self._stopwatch(works())
            self._new = True
        return self._known[name]

    def save(self) -> None:
        """Whole or not at all; what cannot be written is measured again next time."""
        if not self._new or self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self._path) as file:
                file.write(json.dumps(self._known, indent=1).encode())
        except OSError:
            return


def costs_of_this_gpu(device: torch.device) -> Measured:
    return Measured(cache_file(device))


def cache_file(device: torch.device) -> Path:
    """For this GPU, these kernels and this torch."""
    sources = "".join(
        path.read_text(encoding="utf-8") for path in sorted(SOURCES.iterdir())
    )
    facts = "\n".join(
        (
            torch.cuda.get_device_name(device),
            torch.__version__,
            str(torch.version.cuda),
            sources,
            *_python_sources(),
        )
    )
    return (
        cache_folder()
        / f"gpu-costs-{hashlib.sha256(facts.encode()).hexdigest()[:16]}.json"
    )


def _python_sources() -> list[str]:
    """Tilings and launches are part of what was measured."""
    return [
        path.read_text(encoding="utf-8")
        for path in sorted(Path(__file__).parent.glob("*.py"))
    ]


def _read(path: Path) -> dict[str, float]:
    try:
        found = {
            str(name): float(cost)
            for name, cost in json.loads(path.read_text(encoding="utf-8")).items()
        }
        if not all(math.isfinite(cost) and cost > 0 for cost in found.values()):
            raise ValueError("a cost is not a positive number")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        warnings.warn(
            f"the costs in {path} cannot be read ({type(error).__name__}: {error}); measuring again. Remove the file "
            "if this comes back.",
            RuntimeWarning,
            stacklevel=4,
        )
        return {}
    return found
