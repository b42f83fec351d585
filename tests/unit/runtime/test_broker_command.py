"""`statechannel broker run` that is ended while it opens: what it says in the end."""

import asyncio
from collections.abc import Generator
from typing import Any

import pytest

from statechannel.api.extensions import ExtensionError
from statechannel.broker.exits import Stopped
from statechannel.cli import broker

CLOSED = Stopped("closed", "this broker left on request")


class Opening:
    """Stands for `StateChannel.open`: fails while it is shut down."""

    def __init__(self, stopped: Stopped | None) -> None:
        self._stopped = stopped
        self._shut_down = asyncio.Event()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._open().__await__()

    async def _open(self) -> None:
        await self._shut_down.wait()
        raise ExtensionError("balancer", "cannot be started")

    async def shutdown(self, budget_s: float | None = None) -> Stopped | None:
        if self._stopped is not None:
            self._shut_down.set()
        return self._stopped


@pytest.mark.parametrize(
    ("stopped", "reason"), [(CLOSED, "closed"), (None, "closed"), (Stopped("shutdown-late", "x"), "shutdown-late")]
)
async def test_how_it_left_counts_and_not_how_opening_failed(monkeypatch, stopped: Stopped | None, reason: str):
    ended = asyncio.Event()
    ended.set()
    monkeypatch.setattr(broker, "_signals", lambda: ended)
    hooks = broker.SimulatedHooks(own_s=0.0, release_s=0.0, events=False)
    opening: Any = Opening(stopped)
    assert (await broker._run(lambda: opening, "b1", hooks, {}, 1.0)).reason == reason
