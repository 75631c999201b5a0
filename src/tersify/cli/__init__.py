"""The command line: parse, call, print. Heavy modules are imported inside the commands."""

from __future__ import annotations

import sys
from collections.abc import Sequence

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; a user's mistake becomes one sentence and exit code 2, never a traceback."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        from tersify.cli.app import app

        app(args=arguments, prog_name="tersify", obj=arguments)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    except (ValueError, OSError) as error:
        # TerseFileError is a ValueError; OSError covers missing, unreadable and full.
        print(f"tersify: {one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("tersify: stopped", file=sys.stderr)
        return INTERRUPTED
    return 0


def one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}; check the path"
    return printable(" ".join(str(error).split())) or type(error).__name__


def printable(text: str) -> str:
    """Without control characters: a name in a file from elsewhere must not steer the terminal."""
    return "".join(c for c in text if c == "\n" or c.isprintable())
