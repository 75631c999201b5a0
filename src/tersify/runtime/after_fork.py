"""Torch in a forked child.

The threads of torch's OpenMP are not in the child, yet OpenMP waits for them, so the
first operation that torch shares among threads never ends. With one thread it shares
nothing.
"""

from __future__ import annotations

import os
import threading
import warnings

import torch


class _Thread(threading.local):
    ready = False


class _Process:
    """What this process and each thread of it did about having been forked."""

    def __init__(self, *, forked: bool) -> None:
        self.forked = forked  # since this module was imported
        self.settled = False
        self.thread = _Thread()
        self.renewing = threading.Lock()


_process = _Process(forked=False)


def make_torch_safe() -> None:
    """To be called before torch computes. In a child torch gets one thread, once: what
    the child chooses afterwards stays.
    """
    process = _process
    if not process.forked or process.thread.ready:
        return
    process.thread.ready = True
    # Asking also tells this thread's OpenMP the number that another thread has set.
    count = torch.get_num_threads()
    if process.settled:
        return
    process.settled = True
    if count > 1:
        torch.set_num_threads(1)
        warnings.warn(
            f"this process was forked from one in which torch had {count} threads, which a child does not have; so "
            "that it does not wait for them for ever, torch has one here (torch.set_num_threads(1))",
            RuntimeWarning,
            stacklevel=3,
        )


class CallsItselfError(ValueError):
    """What a call of a network waits for is that call."""


class Lock:
    """A lock of this process: another thread may have held the parent's when this one
    was forked. A thread that holds it already is refused, since it would wait for
    itself.
    """

    def __init__(self) -> None:
        self._owner, self._lock = os.getpid(), threading.Lock()
        self._holder: int | None = None  # the thread that holds it

    @property
    def was_forked(self) -> bool:
        return self._owner != os.getpid()

    def __enter__(self) -> None:
        # Threads of a child may do this at once, so the first lock that is stored is
        # the one.
        if self.was_forked:
            with _process.renewing:
                if self.was_forked:
                    self._lock, self._holder = threading.Lock(), None
                    self._owner = os.getpid()
        if self._holder == threading.get_ident():
            raise CallsItselfError(
                "the network calls itself, by its forward or by a hook, and would wait for itself for ever; call the "
                "module that it was compiled from"
            )
        self._lock.acquire()
        self._holder = threading.get_ident()

    def __exit__(self, *_: object) -> None:
        self._holder = None
        self._lock.release()


def _in_the_child() -> None:
    global _process
    _process = _Process(forked=True)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_the_child)
