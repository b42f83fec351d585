"""Plug-in for pytest: the fixture `channel_kit`, and `async def` tests that run in its event loop.

pytest finds it by its entry point, and imports it in each run: what a kit needs is imported by the first test that asks for one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from unittest import TestCase

import pytest

if TYPE_CHECKING:
    from statechannel.testing import ChannelKit

FIXTURE = "channel_kit"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", f"{FIXTURE}(...): arguments of the ChannelKit that the fixture `{FIXTURE}` makes."
    )


@pytest.fixture
def channel_kit(request: pytest.FixtureRequest) -> Iterator[ChannelKit]:
    """A channel in this process, in virtual time; `@pytest.mark.channel_kit(partitions=2)` gives its arguments."""
    from statechannel.testing import ChannelKit  # noqa: PLC0415 - see above

    marker = request.node.get_closest_marker(FIXTURE)
    with ChannelKit() if marker is None else ChannelKit(*marker.args, **marker.kwargs) as kit:
        yield kit


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Coroutines that use the fixture run in its loop, whatever other plug-ins would do with coroutines."""
    for item in items:
        if not isinstance(item, pytest.Function) or FIXTURE not in item.fixturenames:
            continue
        of_unittest = item.cls is not None and issubclass(item.cls, TestCase)  # it has a loop and a set-up of its own
        if not of_unittest and inspect.iscoroutinefunction(item.obj):
            item.obj = _in_kit(item, item.obj)
            item.runtest = partial(item.ihook.pytest_pyfunc_call, pyfuncitem=item)  # type: ignore[method-assign]


def _in_kit(item: pytest.Function, test: Callable[..., Any]) -> Callable[..., None]:
    def run(**arguments: Any) -> None:
        kit = cast("ChannelKit", item.funcargs[FIXTURE])
        kit.run(test(**arguments))

    return run
