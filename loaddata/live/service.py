"""Load data service of a live broker: it measures, reports, and holds the reports of others. Decisions are in the pure parts.

Interface: `start`, `close`, `broker_loads`, `top_bundles`, `report_now`, `status`. It starts when the broker has caught up with
the channel, and ends with it. No failure in here stops the broker: it is logged, counted, and retried.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from loaddata.live.topics import Clocks, KafkaSide, LoadConnection
from loaddata.measure.host_usage import HostMeter
from loaddata.measure.local_load import LocalLoad
from loaddata.model.broker_load import BrokerLoad, HostUsage, ResourceWeights
from loaddata.model.bundle_load import LocalBundle, TopBundle, top_bundles
from loaddata.report.record import ReportedLoad, ReportedTopBundles, ReportKind
from loaddata.report.reporter import LoadSample, Reporter
from loaddata.settings import LoadSettings
from loaddata.source import HostSource, LoadSource
from loaddata.view.ownership import OwnershipChange, change_of, newest_changes
from loaddata.view.table_view import Expiry
from statechannel.broker.changes import ChangesError
from statechannel.broker.exits import ChannelStoppedError
from statechannel.engine.config import Identity
from statechannel.protocol.states import State

if TYPE_CHECKING:
    from statechannel.api.member import ChannelMember


_log = logging.getLogger(__name__)

_TIMER_SLACK_S = 0.001
_LOOK_S = 0.02


class LoadService:
    """The service. All methods belong to the loop's thread.

    Args:
        connection: How Kafka is reached, and the channel's name.
        channel: The caught-up member of the channel in the same process.
        host: Load of the machine; None measures it (`host_usage`).
        has_policy: Whether a namespace has an isolation policy or an anti-affinity group.
    """

    def __init__(
        self,
        settings: LoadSettings,
        connection: LoadConnection,
        identity: Identity,
        source: LoadSource,
        channel: ChannelMember,
        *,
        host: HostSource | None = None,
        has_policy: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self.settings = settings
        self._source = source
        self._channel = channel
        self._host = host or HostMeter(nic_speed_gbit=settings.nic_speed_gbit)
        self._has_policy = has_policy
        self._clocks = Clocks()
        self._broker = identity.broker
        self._local = LocalLoad(settings.update_rules(), settings.sample_clock(), settings.bundles_max)
        self._reporter = Reporter(identity.broker, identity.incarnation, settings)
        self._topics = KafkaSide(settings, connection, self._reporter, self._clocks)
        self._expiry = {kind: Expiry(settings.expiry_rules()) for kind in ReportKind}
        self._top_rules = settings.top_rules()
        self._failures: Counter[str] = Counter()
        self._failing: dict[str, str] = {}
        self._usage: HostUsage | None = None
        self._host_read_s: float | None = None
        self._measured_s: float | None = None
        self._channel_ended = False
        self._missed = False
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    # --- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Create or check the topics, and start.

        Raises:
            KafkaAdapterError: Kafka is unavailable, or a load topic is missing or has unsuitable settings.
            RuntimeError: It was started before.
        """
        if self._tasks:
            raise RuntimeError("load data is started once")
        self._topics.registered(self._channel.broker_ids())
        await self._topics.open()
        self._channel.watched_topics.update(self._topics.topics.policies)
        self._reporter.own.started(self._channel.positions())
        make = asyncio.get_running_loop().create_task
        self._tasks = [make(self._tick_for_ever(), name="load-tick"), make(self._watch_for_ever(), name="load-watch")]

    async def close(self) -> None:
        """Write tombstones for this broker's own reports, and stop; within about three times `close_timeout_s`."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._tasks:
            await self._settled()
            self._topics.write(self._reporter.leave(self._clocks.wall_ms()))
        await self._topics.close()

    async def _settled(self) -> None:
        """Wait for reports in flight: a tombstone has to name the newest to have an effect."""
        kinds = list(ReportKind) if self._topics.leading else [ReportKind.BROKER_LOAD]
        until_s = time.monotonic() + self.settings.close_timeout_s
        while self._reporter.unconfirmed(kinds) and time.monotonic() < until_s:  # noqa: ASYNC110 - once, at the end
            await asyncio.sleep(_LOOK_S)

    # --- queries ----------------------------------------------------------------------------------------------------

    def broker_loads(self) -> Mapping[str, ReportedLoad]:
        """The newest report of each broker, this one's included, by broker, sorted."""
        seen = self._topics.broker_load.seen(self._clocks.mono_s())
        return {name: ReportedLoad(view.report.load, view.age_s, view.lapsed) for name, view in seen.items()}

    def top_bundles(self) -> Mapping[str, ReportedTopBundles]:
        """The heaviest bundles of each broker, sorted; empty if this broker does not lead."""
        seen = self._topics.top_bundles.seen(self._clocks.mono_s())
        return {
            name: ReportedTopBundles(view.report.bundles, view.age_s, view.lapsed, view.report.header.owned_as_of)
            for name, view in seen.items()
        }

    def position(self, kind: ReportKind) -> int | None:
        """Position in a load topic: offset of the newest record read, -1: none; None if it is not followed here."""
        return self._topics.position(kind)

    def local_bundles(self) -> Mapping[str, LocalBundle]:
        """Every bundle of this broker with its averages, for splits."""
        return self._local.bundles

    def local_load(self) -> BrokerLoad:
        return self._local.load

    def weigh(self, weights: ResourceWeights | None) -> None:
        """Set the weights of the resources from the next measurement and report on; None: those of the settings."""
        counted = self.settings.weights() if weights is None else weights
        self._local.rules = replace(self.settings.update_rules(), weights=counted)
        self._reporter.weights = counted

    def report_now(self, why: str = "requested") -> None:
        """Measure, and write both reports at once, whatever the figures."""
        self._reporter.force(why)
        self._measured_s = None
        self._wake.set()

    def status(self) -> dict[str, Any]:
        """Counts of what was read, written and dropped, by reason. JSON-able."""
        return {
            **self._topics.status(),
            "reading": self._local.reading,
            "now": _usage_now(self._local),
            "reports": {f"{kind}: {cause}": count for (kind, cause), count in sorted(self._reporter.causes.items())},
            "not_reported": dict(self._reporter.skipped),
            "not_measured": {why: count for why, count in sorted(self._local.dropped.items()) if count},
            "suspects": {str(kind): expiry.suspects for kind, expiry in self._expiry.items()},
            "failures": dict(self._failures),
            "failing": dict(self._failing),
        }

    # --- ticking ----------------------------------------------------------------------------------------------------

    async def _tick_for_ever(self) -> None:
        while True:
            self._wake.clear()
            await self._guarded("listening", self._listen)
            await self._guarded("measuring", self._measure)
            await self._guarded("reporting", self._report)
            await self._guarded("leading", self._lead)
            try:
                async with asyncio.timeout(self.settings.tick_s):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _guarded(self, doing: str, act: Callable[[], Any]) -> None:
        """Run a step; an error is logged once while it repeats."""
        try:
            await act()
        except Exception as error:
            self._failures[doing] += 1
            if self._failing.get(doing) != repr(error):
                self._failing[doing] = repr(error)
                _log.exception("load data: %s failed", doing)
        else:
            self._failing.pop(doing, None)

    async def _listen(self) -> None:
        self._topics.registered(self._channel.broker_ids())

    async def _measure(self) -> None:
        now_s = self._clocks.mono_s()
        if self._is_due(self._host_read_s, now_s):
            self._host_read_s = now_s
            self._usage = await asyncio.to_thread(self._host.read, now_s) or self._usage
        if self._usage is None or not self._is_due(self._measured_s, now_s):
            return
        bundles = self._source.bundles()
        self._measured_s = now_s
        self._local.measured(self._usage, bundles, now_s=now_s, now_ms=self._clocks.wall_ms())

    def _is_due(self, last_s: float | None, now_s: float) -> bool:
        return last_s is None or now_s - last_s >= self.settings.measure_interval_s - _TIMER_SLACK_S

    async def _report(self) -> None:
        local = self._local
        if local.measured_s is None:
            return
        now_s, now_ms = self._clocks.mono_s(), self._clocks.wall_ms()
        sample = LoadSample(local.load, self._heaviest, local.reading, local.measured_s)
        self._topics.write(self._reporter.tick(sample, self._channel.positions(), now_s=now_s, now_ms=now_ms))

    def _heaviest(self) -> Sequence[TopBundle]:
        return top_bundles(self._local.bundles, self._top_rules, self._has_policy)

    async def _lead(self) -> None:
        """As the leader, follow the top bundles, and write tombstones for expired reports."""
        leading = self._channel.leading
        if leading != self._topics.leading:
            for expiry in self._expiry.values():
                expiry.reset()
            await self._topics.lead(leading)
        if not leading or self.settings.tombstones != "leader":
            return
        now_s, now_ms = self._clocks.mono_s(), self._clocks.wall_ms()
        for kind, expiry in self._expiry.items():
            if self._topics.caught_up(kind):
                self._topics.write_tombstones(kind, expiry.step(self._topics.view(kind).outdated(now_s), now_s, now_ms))

    # --- ownership --------------------------------------------------------------------------------------------------

    async def _watch_for_ever(self) -> None:
        while not self._channel_ended:
            await self._guarded("watching", self._watch)
            await asyncio.sleep(self.settings.tick_s)

    async def _watch(self) -> None:
        try:
            with closing(self._channel.watch(self.settings.watch_max)) as watch:
                self._see_all()  # no gap: no other task has run since the line before
                while True:
                    self._saw(change_of(await watch.next()))
        except ChannelStoppedError:
            self._channel_ended = True
        except ChangesError as error:
            if not self._missed:
                _log.info("changes of ownership are watched again: %s", error)
            self._missed = True

    def _saw(self, change: OwnershipChange | None) -> None:
        if change is None:
            return
        if change.broker == self._broker:
            self._reporter.own.changed(change.partition, change.offset)
        self._topics.ownership_changed(change)

    def _see_all(self) -> None:
        assigned = (
            OwnershipChange(bundle.owner, bundle.partition, bundle.offset)
            for bundle in self._channel.picture().bundles
            if bundle.state == State.ASSIGNED and bundle.owner is not None
        )
        for change in newest_changes(assigned):
            self._topics.ownership_changed(change)
        if self._missed:  # this broker's own bundles may have come and gone
            self._missed = False
            for partition, offset in self._channel.positions().items():
                self._reporter.own.changed(partition, offset)


def _usage_now(local: LocalLoad) -> dict[str, float] | None:
    """This broker's last measurement: usage as a part of the limit, and messages a second."""
    if local.measured_s is None:
        return None
    load = local.load
    return {
        "cpu": load.cpu.percent / 100,
        "memory": load.memory.percent / 100,
        "bandwidth_in": load.bandwidth_in.percent / 100,
        "bandwidth_out": load.bandwidth_out.percent / 100,
        "max": load.max_resource_usage,
        "msg_rate": load.msg_rate,
    }
