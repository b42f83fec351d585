"""The same as `statechannel.router.router` for programs without asyncio; any thread may call it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Self

from statechannel.broker.exits import ChannelStoppedError
from statechannel.broker.loop_thread import LoopThread
from statechannel.router.router import Router

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

    from prometheus_client import CollectorRegistry

    from statechannel.broker.changes import Change
    from statechannel.broker.exits import Stopped
    from statechannel.engine.cluster_view import BrokerSeen, BundleSeen
    from statechannel.router.router import RouteAnswer, ChangesGap
    from statechannel.settings import Settings


class BlockingRouter:
    """See `Router`. `lookup` runs in the caller's thread, all else on a private event loop."""

    def __init__(self, loop: LoopThread, router: Router) -> None:
        self._loop = loop
        self._router = router
        self.lookup = router.lookup

    @classmethod
    def open(
        cls,
        settings: Settings | None = None,
        *,
        join_timeout_s: float | None = None,
        metrics_registry: CollectorRegistry | None = None,
        **groups: Mapping[str, Any],
    ) -> Self:
        """See `Router.open`."""
        opening = Router.open(settings, join_timeout_s=join_timeout_s, metrics_registry=metrics_registry, **groups)
        loop = LoopThread("statechannel-router")

        async def make() -> Router:
            return await opening

        try:
            return cls(loop, loop.call(make()))
        except BaseException:
            loop.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def wait(self, name: str, timeout_s: float | None = None, *, assign: bool = False) -> RouteAnswer:
        """See `Router.wait`."""
        return self._loop.call(self._router.wait(name, timeout_s, assign=assign))

    def changes(self, since: Mapping[int, int] | None = None, *, limit: int = 10_000) -> Iterator[Change | ChangesGap]:
        """See `Router.changes`. Each step of the iterator waits for the next change."""
        stream = self._router.changes(since, limit=limit)
        try:
            while True:
                try:
                    yield self._loop.call(anext(stream))  # type: ignore[arg-type]  # a generator's step is a coroutine
                except StopAsyncIteration:
                    return
        finally:
            with contextlib.suppress(RuntimeError, ChannelStoppedError):
                self._loop.call(stream.aclose())  # type: ignore[attr-defined]

    def bundles(self, namespace: str | None = None) -> list[BundleSeen]:
        """See `Router.bundles`."""
        return self._loop.ask(lambda: self._router.bundles(namespace))

    def owned_by(self, broker: str) -> list[BundleSeen]:
        """See `Router.owned_by`."""
        return self._loop.ask(lambda: self._router.owned_by(broker))

    def brokers(self) -> list[BrokerSeen]:
        """See `Router.brokers`."""
        return self._loop.ask(self._router.brokers)

    def positions(self) -> dict[int, int]:
        """See `Router.positions`."""
        return self._loop.ask(self._router.positions)

    def digest(self) -> tuple[str, dict[int, int]]:
        """See `Router.digest`."""
        return self._loop.ask(self._router.digest)

    @property
    def stopped(self) -> Stopped | None:
        """See `Router.stopped`."""
        return self._router.stopped

    def close(self) -> None:
        """See `Router.close`. A second call does nothing."""
        self._loop.finish(self._router.close)
