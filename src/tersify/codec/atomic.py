"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from tersify.regular import check_regular


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write: at `path` lies the old one or the whole new one, whenever the
    machine stops.

    The bytes go to a temporary file in the same folder, to the disk, and then under the
    final name; an error on the way leaves the old file and nothing else. A symbolic
    link stays, and what it names is replaced. The new file has the old one's mode and,
    where the system allows it, its owner.
    """
    # os.replace on the link's own name would put a file in the link's place.
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "No such folder", str(target.parent))
    old = _facts(path)
    # In the same folder, since a rename is atomic within one file system only; a random
    # name, since two processes may write at once.
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    raw: _Watched | None = None
    try:
        raw = _Watched(str(temporary), "wb", opener=lambda path, _: _create(path, old))
        with io.BufferedWriter(raw) as file:
            yield file
            file.flush()
            # Data before the name: after a power cut the new name must not lead to an
            # empty file.
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if raw is not None and raw.failure is not None and isinstance(error, Exception):
            raise OSError(
                raw.failure.errno, raw.failure.strerror, os.fspath(path)
            ) from error
        raise
    # The rename itself lies in the folder, and is safe only when the folder is on the
    # disk.
    _sync_folder(target.parent)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Replace the file by UTF-8 text."""
    with replacing(path) as file:
        file.write(text.encode())


class _Watched(io.FileIO):
    """Remembers why a write failed: writers such as torch.save tell it in words of
    their own.
    """

    failure: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.failure = error
            raise


def _facts(path: str | os.PathLike[str]) -> os.stat_result | None:
    """Of the regular file at `path`, or None where there is nothing yet."""
    try:
        facts = os.stat(path)
    except FileNotFoundError:
        return None
    check_regular(path, facts)
    return facts


def _create(temporary: str, old: os.stat_result | None) -> int:
    """A new file with the rights of the old one; without one, with those that the umask
    leaves.
    """
    # O_EXCL refuses a name that is there already, a link that somebody planted among
    # them.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    if old is None or not hasattr(os, "fchown"):
        return os.open(temporary, flags, 0o666)
    # nobody else may open it before it has its own rights
    descriptor = os.open(temporary, flags, 0o600)
    try:
        own = os.fstat(descriptor)
        if (own.st_uid, own.st_gid) != (old.st_uid, old.st_gid):
            with contextlib.suppress(PermissionError):  # only root may give files away
                os.fchown(descriptor, old.st_uid, old.st_gid)
        # after the owner: a change of owner clears bits
        os.fchmod(descriptor, stat.S_IMODE(old.st_mode))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _sync_folder(folder: Path) -> None:
    # some file systems cannot sync a folder; the file itself is safe
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
