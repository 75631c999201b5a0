"""The command line: parse, call, print. Heavy modules are imported inside the commands."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; a user's mistake becomes one sentence and exit code 2, never a traceback."""
    from tersify.cli.app import app

    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        app(args=arguments, prog_name="tersify", obj=arguments)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    except (ValueError, OSError) as error:
        # TerseFileError is a ValueError; OSError covers missing, unreadable and full.
        print(f"tersify: {one_line(error)}", file=sys.stderr)
        return 2
    return 0


def one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}; check the path"
    return " ".join(str(error).split()) or type(error).__name__
