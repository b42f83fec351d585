"""What a call says in the child of a fork."""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import os
import pickle
import select
import signal
import time
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

from statechannel.api import ChannelStoppedError

if TYPE_CHECKING:
    from collections.abc import Callable

CHILD_S = 20.0


class Raised(NamedTuple):
    """An error of the child; `reason` as of its `Stopped`."""

    kind: str
    message: str
    reason: str = ""
    hint: str = ""


def fork_in_c() -> int:
    """As servers written in C do it, outside of any loop: no hook of Python is called."""
    child: int = ctypes.PyDLL(None).fork()
    if child == 0:
        asyncio._set_running_loop(None)
    return child


def in_child(act: Callable[[], Any], fork: Callable[[], int] = os.fork) -> Any:
    """The result of `act` in a forked child, awaited there if need be; `Raised` for an error.

    Raises:
        TimeoutError: The child hung for `CHILD_S`.
    """
    reading, writing = os.pipe()
    with warnings.catch_warnings():  # from Python 3.12 on: other threads run, which is what is tried
        warnings.simplefilter("ignore", DeprecationWarning)
        child = fork()
    if child == 0:
        try:
            os.write(writing, pickle.dumps(_said(act)))
        finally:
            os._exit(0)
    os.close(writing)
    try:
        return pickle.loads(_read(reading))
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _said(act: Callable[[], Any]) -> Any:
    async def end(result: Any) -> Any:
        return await result

    try:
        result = act()
        return asyncio.run(end(result)) if inspect.isawaitable(result) else result
    except ChannelStoppedError as error:
        return Raised(type(error).__name__, str(error), error.stopped.reason, error.hint)
    except BaseException as error:  # the test is to see it
        return Raised(type(error).__name__, str(error))


def _read(reading: int) -> bytes:
    said, until_s = b"", time.monotonic() + CHILD_S
    while select.select([reading], [], [], max(0.0, until_s - time.monotonic()))[0]:
        part = os.read(reading, 65_536)
        if not part:
            return said
        said += part
    raise TimeoutError(f"the child has said nothing within {CHILD_S:g} s")
