"""What a measurement found, as a file that is there whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tersify.codec.atomic import write_text


def write_results(path: Path, results: Mapping[str, Any]) -> None:
    write_text(path, json.dumps(results, indent=2, ensure_ascii=False) + "\n")
