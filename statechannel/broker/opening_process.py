"""The process that opened a member.

The child of a fork has its parent's memory, but none of its threads: nothing there updates what the memory says.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
from typing import Any, NoReturn, Self

from statechannel.broker.exits import ChannelStoppedError, Stopped
from statechannel.errors import StateChannelError

_WIPE_ON_FORK = 18
"""Linux's MADV_WIPEONFORK, for which Python has no name."""


def _make_mark() -> mmap.mmap | bytearray:
    """A byte that is 1, and 0 in the child of a fork.

    Servers that fork in C, as uWSGI does, call no hooks of Python; and `os.getpid` is a system call, for each request.
    """
    if sys.platform != "linux":
        return bytearray(b"\1")  # the hook has to do
    page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # before Linux 4.14, as elsewhere
        page.madvise(_WIPE_ON_FORK)
    page[0] = 1
    return page


class OpeningProcess:
    """This process, as the one that opens something."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._forked: Stopped | None = None

    @property
    def forked(self) -> Stopped | None:
        """Why what it opened is of no use here: this is the child of a fork; None in the process that opened it."""
        if not _mark[0]:
            _enter_child()
        return self._forked

    def leave(self) -> None:
        """From here on this is the child of a fork."""
        detail = f"it was opened in process {self.pid}, and this is process {os.getpid()}; open one in each worker"
        self._forked = Stopped("forked", detail)

    def require(self) -> None:
        """Return in the process that opened it.

        Raises:
            ChannelStoppedError: In the child of a fork; `stopped.reason` is `forked`.
        """
        if (forked := self.forked) is not None:
            raise ChannelStoppedError(forked)


class PickledError(StateChannelError, TypeError):
    """A channel or router was to be handed to another process."""

    def __init__(self, kind: str) -> None:
        super().__init__(
            f"A {kind} cannot be pickled or copied: it belongs to the process that opened it.",
            hint="Hand the settings to the worker, and open one there (design/processes.md).",
        )


class OfOneProcess:
    """Base of what `multiprocessing` must not hand to a worker."""

    def __reduce__(self) -> NoReturn:
        raise PickledError(type(self).__name__)


class OfOneLoop(OfOneProcess):
    """Base of what is opened in an event loop: the end of an `async with` block closes it."""

    _host: Any

    async def close(self) -> Any: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._host.process.forked is None:  # the child of a fork leaves the block, too: nothing there is its own
            await self.close()


_mark = _make_mark()
_here = OpeningProcess()


def opening_process() -> OpeningProcess:
    """What is opened now keeps it, and asks it later."""
    if not _mark[0]:
        _enter_child()
    return _here


def _enter_child() -> None:
    """The second call in a child does nothing."""
    global _here  # noqa: PLW0603 - the child is another process
    if _here.pid != os.getpid():
        _here.leave()
        _here = OpeningProcess()
    _mark[0] = 1


os.register_at_fork(after_in_child=_enter_child)
