"""A member of the channel without Kafka: a real engine and host on a log that swallows what is written."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from statechannel.api import StateChannel
from statechannel.broker.assembly import KafkaMemberLog, Opened, access
from statechannel.broker.exits import Stopped
from statechannel.broker.hooks import BrokerHooks
from statechannel.broker.host import Host
from statechannel.broker.observe.metrics import Metrics
from statechannel.engine.engine import Engine
from statechannel.settings import Settings, load, to_engine, to_identity
from statechannel.settings.groups_engine import HookSettings, RuntimeSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


class SilentLog:
    """Never answers: like a Kafka that takes everything and tells nothing."""

    registered = False
    unanswered = 0

    def start(self, inbox: object, on_end: object, last_progress_s: object = None) -> None:
        self.inbox = inbox

    def append(self, effect: object) -> None: ...

    def restart_reading(self, topic: object, partition: int) -> None: ...

    def stand(self, *, stand: bool) -> None: ...

    def close(self, timeout_s: float) -> bool:
        return True


def lone_settings() -> Settings:
    return load(overrides={"kafka": {"bootstrap_servers": "127.0.0.1:1"}})


def host_settings(*, deadline_s: float = 15.0, **runtime: float) -> Settings:
    """Settings with shorter times than their bounds allow.

    Args:
        deadline_s: Of hooks.
    """
    hooks, group = HookSettings.model_construct(deadline_s=deadline_s), RuntimeSettings.model_construct(**runtime)
    return lone_settings().model_copy(update={"hooks": hooks, "runtime": group})


def started_host(
    log: SilentLog | None = None,
    settings: Settings | None = None,
    on_stuck: Callable[[], None] | None = None,
    hooks: BrokerHooks | None = None,
    engine: Engine | None = None,
) -> Host:
    """A host on the running loop that has not caught up, and never will; it is left open."""
    engine = engine or Engine(to_identity("b1"), to_engine(lone_settings()), None)
    host = Host(
        engine, log or SilentLog(), hooks or BrokerHooks(), Metrics("test", "b1"), settings=settings, on_stuck=on_stuck
    )
    host.start()
    return host


@contextlib.asynccontextmanager
async def lone_host(
    log: SilentLog | None = None,
    settings: Settings | None = None,
    on_stuck: Callable[[], None] | None = None,
    hooks: BrokerHooks | None = None,
    engine: Engine | None = None,
) -> AsyncIterator[Host]:
    """The same, until the block ends."""
    host = started_host(log, settings, on_stuck, hooks, engine)
    try:
        yield host
    finally:
        host.stop(Stopped("closed", "the test is over"))
        await host.wait_stopped()


@contextlib.asynccontextmanager
async def lone_channel() -> AsyncIterator[StateChannel]:
    """Its face."""
    settings = lone_settings()
    async with lone_host() as host:
        yield StateChannel(
            Opened(host, KafkaMemberLog(access(settings), settings, partitions=1), access(settings)), settings
        )
