"""One process at a time in a directory."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

LOCK = ".lock"
_HELD = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)


@contextlib.contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Hold the directory's lock, or say who holds it. The kernel frees the lock of a
    process that dies.
    """
    lock = DirectoryLock(directory)
    try:
        yield
    finally:
        lock.release()


class DirectoryLock:
    """The lock of a directory, held from birth until `release`; the directory is made
    where it is missing.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / LOCK
        self._file = self._acquire()

    def _acquire(self) -> int:
        while True:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                _lock(file, self._path.parent)
                # Between open and flock the holder may have removed the file: a lock on
                # a removed file locks nobody out.
                if _is_at(self._path, file):
                    os.ftruncate(file, 0)
                    os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
                    return file
            except BaseException:
                os.close(file)
                raise
            # its holder released it, and removed it, between the two calls
            os.close(file)

    def release(self) -> None:
        if self._file < 0:
            return
        # a directory that is gone has taken its lock along
        with contextlib.suppress(OSError):
            # Removed while it is still locked: another process that has just opened it
            # sees in `_is_at` that it is gone, and makes a new one.
            self._path.unlink()
        os.close(self._file)
        self._file = -1


def check_unlocked(directory: Path) -> None:
    """Raise where another process holds the directory; its files are not touched."""
    try:
        file = os.open(directory / LOCK, os.O_RDWR)
    except OSError:  # no directory, no lock, or none of ours to open
        return
    try:
        _lock(file, directory)
    finally:
        os.close(file)


def _lock(file: int, directory: Path) -> None:
    try:
        # flock belongs to the open file, so the kernel frees it however the process
        # ends.
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        # some network file systems are mounted without locks
        if error.errno not in _HELD:
            warnings.warn(
                f"{directory} cannot be locked ({error.strerror}); see to it that no other process writes there",
                RuntimeWarning,
                stacklevel=2,
            )
            return
        holder = os.pread(file, 32, 0).decode(errors="replace").strip()
        who = f"process {holder}" if holder.isdigit() else "another process"
        raise ValueError(
            f"{who} is at work in {directory}; wait for it to end, or give another --out"
        ) from None


def _is_at(path: Path, file: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(file))
    except FileNotFoundError:
        return False
