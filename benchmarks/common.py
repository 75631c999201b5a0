"""What every benchmark writes: its figures with the machine, the versions and the commit they belong to."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

# oneDNN's AMX kernels die where a virtual machine hides CPUID leaf 0x1D; set before torch is imported.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")


def report(
    name: str, figures: dict[str, float], *, json_path: Path | None, versions: dict[str, str], **machine: Any
) -> None:
    """Write {"name", "commit", "machine", "versions", "figures"} where a path is given."""
    if json_path is None:
        return
    from tersify.lab.experiments.provenance import commit, cpu_name

    facts = {"cpu": cpu_name(), "cores": len(os.sched_getaffinity(0)), **machine}
    versions = {"python": platform.python_version(), **versions}
    here = commit(Path(__file__).parent)
    record = {"name": name, "commit": here, "machine": facts, "versions": versions, "figures": figures}
    json_path.write_text(json.dumps(record, indent=1) + "\n")
