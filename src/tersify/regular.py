"""Only regular files are read and replaced: a FIFO would block, a device would be lost."""

from __future__ import annotations

import errno
import os
import stat

_KINDS = (
    (stat.S_ISFIFO, "FIFO"),
    (stat.S_ISSOCK, "socket"),
    (stat.S_ISCHR, "character device"),
    (stat.S_ISBLK, "block device"),
)


def check_regular(path: str | os.PathLike[str], facts: os.stat_result) -> None:
    """`facts` are those of what lies at `path`, symbolic links followed."""
    if stat.S_ISREG(facts.st_mode):
        return
    if stat.S_ISDIR(facts.st_mode):
        raise IsADirectoryError(
            errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path)
        )
    kind = next(
        (name for is_kind, name in _KINDS if is_kind(facts.st_mode)), "special file"
    )
    raise OSError(
        errno.EINVAL,
        f"A {kind} lies there, and only regular files are read or replaced",
        os.fspath(path),
    )


def read_regular(path: str | os.PathLike[str]) -> bytes:
    """All bytes of a regular file."""
    with os.fdopen(open_regular(path), "rb") as file:
        return file.read()


def open_regular(path: str | os.PathLike[str]) -> int:
    """A descriptor for reading; whatever is no regular file raises at once."""
    check_regular(path, os.stat(path))
    # What lies there may change after the look: without this flag the opening of a FIFO
    # waits for a writer.
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
    descriptor = os.open(path, flags)
    try:
        check_regular(path, os.fstat(descriptor))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
