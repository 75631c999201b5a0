"""The command line: parse, call, print. Heavy modules are imported inside the commands."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path

INTERRUPTED = 130
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; a user's mistake becomes one sentence and exit code 2, never a
    traceback.
    """
    arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    try:
        from tersify.cli.app import app

        code = app(
            args=arguments, prog_name="tersify", obj=arguments, standalone_mode=False
        )
    except (ValueError, OSError) as error:
        # TerseFileError is a ValueError; OSError covers missing, unreadable and full.
        print(f"tersify: {one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("tersify: stopped", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        # A wrong flag. Typer's versions agree on this method, and not on the class.
        if not hasattr(error, "format_message"):
            raise
        command = getattr(getattr(error, "ctx", None), "command_path", "tersify")
        print(
            f"tersify: {one_line(error).rstrip('.')}; `{command} -h` lists what there is",
            file=sys.stderr,
        )
        return 2
    return code if isinstance(code, int) else 0


def one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}; {_remedy(error)}"
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    return printable(" ".join(message.split())) or type(error).__name__


def _remedy(error: OSError) -> str:
    if error.errno in _FULL:
        return "free some space"
    # Who names a run's directory means the network in it.
    model = Path(os.fsdecode(error.filename), "model.terse")
    if isinstance(error, IsADirectoryError) and model.is_file():
        return f"its network is {model}"
    return "check the path"


def printable(text: str) -> str:
    """Without control characters: a name in a file from elsewhere must not steer the
    terminal.
    """
    return "".join(c for c in text if c == "\n" or c.isprintable())
