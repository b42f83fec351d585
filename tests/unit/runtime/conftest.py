"""Tests that drive a member on a loop run on each kind of event loop that programs bring along."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import uvloop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    LoopMaker = Callable[[], asyncio.AbstractEventLoop]

DRIVING = {
    "test_bounds",
    "test_changes",
    "test_driver",
    "test_extensions",
    "test_fork",
    "test_guard",
    "test_handlers",
    "test_hooks",
    "test_late_hooks",
    "test_other_loops",
    "test_tickets",
}
"""The others take long, or do not depend on the loop."""
_raised: list[object] = []


def _noting(make: LoopMaker) -> LoopMaker:
    def made() -> asyncio.AbstractEventLoop:
        loop = make()
        loop.set_exception_handler(lambda _, context: _raised.append(context))
        return loop

    return made


def _debugged() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.set_debug(True)
    return loop


def _eager() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
    return loop


LOOPS: dict[str, LoopMaker] = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop, "debug": _debugged}
if hasattr(asyncio, "eager_task_factory"):  # from Python 3.12 on
    LOOPS["eager"] = _eager


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Mapping[str, LoopMaker]:
    names = LOOPS if item.path.stem in DRIVING else ["asyncio"]
    return {name: _noting(LOOPS[name]) for name in names}


@pytest.fixture(autouse=True)
def nothing_reaches_the_handler_of_the_loop() -> Iterator[None]:
    _raised.clear()
    yield
    assert _raised == []
