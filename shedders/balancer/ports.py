"""Ports of the balancer's parts: their inputs and outputs, clocks, and the check whether moves are allowed now."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from loaddata.model.figures import LATEST_MS
from shedders.balancer.cluster_inputs import BundleCache, ClusterInputs, cluster_now
from shedders.decisions.builder import RecordBounds, outcome_record
from statechannel.clocks import now_ms

if TYPE_CHECKING:
    from shedders.balancer.active_strategies import ActiveStrategies
    from shedders.balancer.metrics import BalancerMetrics
    from shedders.balancer.movers import EndedOperation
    from shedders.balancer.settings import BalancerSettings
    from shedders.decisions.record import AnyRecord, DecisionRecord, Inputs
    from shedders.model.cluster import Cluster
    from shedders.model.plan import Left
    from shedders.policies.effective import EffectivePolicies
    from statechannel.api.member import ChannelMember
    from statechannel.engine.cluster_view import ClusterView


WINDOW_S: Final = 120.0  # window of records that determine the time: dozens of heartbeats of every broker
SAMPLES_MAX: Final = 240
QUIET_S: Final = 10.0
"""After this time without records the next ones may be a backlog: the former estimate counts as a new sample."""


class BalancerLogClock:
    """The log's time, estimated from the timestamps of records and this process's monotonic clock.

    Kafka stamps a record when it appends it, and it is read afterwards: at that moment the log's time was no earlier. Of the
    records of the last `WINDOW_S` the latest time counts, continued by the monotonic clock. So a backlog does not turn it back,
    and a record stamped by a Kafka broker with a fast clock affects it for no longer than that. It runs on while nothing is
    read. Only before the first record it is this machine's wall clock.

    `heard` belongs to one thread; the other methods are thread-safe.
    """

    def __init__(self, mono_s: Callable[[], float] = time.monotonic, wall: Callable[[], int] = now_ms) -> None:
        self._mono_s = mono_s
        self._wall = wall
        self._newest_ms = 0
        self._samples: deque[tuple[float, float]] = deque(maxlen=SAMPLES_MAX)
        self._ahead_ms: float | None = None

    def heard(self, timestamp_ms: int) -> None:
        """Record the timestamp of the newest record; the same as before means no new record."""
        if timestamp_ms == self._newest_ms or not 0 < timestamp_ms <= LATEST_MS:
            return
        now_s = self._mono_s()
        self._newest_ms = timestamp_ms
        if self._ahead_ms is not None and self._samples[-1][0] < now_s - QUIET_S:
            self._samples.append((now_s, self._ahead_ms))
        self._samples.append((now_s, timestamp_ms - now_s * 1_000))
        while self._samples[0][0] < now_s - WINDOW_S:
            self._samples.popleft()
        self._ahead_ms = max(ahead_ms for _, ahead_ms in self._samples)

    def now_ms(self) -> int:
        return self._wall() if self._ahead_ms is None else round(self._ahead_ms + self._mono_s() * 1_000)

    def ahead_ms(self) -> int | None:
        """How far this machine's wall clock is ahead of the log's time; None before the first record."""
        return None if self._ahead_ms is None else self._wall() - self.now_ms()


@dataclass(frozen=True, slots=True)
class LiveClocks:
    """Monotonic seconds for waits and ages; an estimate of the log's time for people and for the expiry of policies."""

    mono_s: Callable[[], float] = time.monotonic
    log_ms: Callable[[], int] = now_ms


@dataclass(frozen=True, slots=True)
class Ports:
    """The dependencies of a balancer.

    Attributes:
        settings: The balancer's settings, overridden by policies: they may change while it runs.
        manager: `extensible` or `modular`: the policy, else the setting.
        effective: The policies in effect; None before they were read.
        known: Inputs in addition to the channel's view.
        inputs: How far each log was read.
        write: Writes a decision record; never waits.
        recall: The newest decision of any leader from which the next continues; None if there is none. It may
            raise: then the leader starts without memory.
        unusable: Why the policies in effect cannot be used; None if they can.
        kept: Cache of bundles from earlier clusters.
    """

    channel: ChannelMember
    settings: Callable[[], BalancerSettings]
    manager: Callable[[], str]
    effective: Callable[[], EffectivePolicies | None]
    known: Callable[[], ClusterInputs]
    chosen: Callable[[], ActiveStrategies]
    inputs: Callable[[ClusterView | None], Inputs]
    write: Callable[[AnyRecord], object]
    recall: Callable[[], Awaitable[DecisionRecord | None]]
    metrics: BalancerMetrics
    clocks: LiveClocks
    unusable: Callable[[], str | None] = lambda: None
    kept: BundleCache = field(default_factory=BundleCache)
    contradictions: Callable[[], Sequence[Left]] = tuple

    def cluster(self, picture: ClusterView) -> Cluster:
        return cluster_now(picture, self.known(), self.clocks.log_ms(), kept=self.kept)

    @property
    def bounds(self) -> RecordBounds:
        return self.settings().record_bounds()

    def forbidden(self) -> tuple[str, str] | None:
        """Why no bundle may be moved: a stable word and a sentence. Checked again when the turn of a move comes."""
        effective, unusable = self.effective(), self.unusable()
        if effective is None:
            return "policies-unread", "the policies have not been read to their end yet"
        if unusable is not None:
            return "unusable-policies", unusable
        if not self.settings().balancing:
            return "shedding-off", "extensions.balancer.balancing is false on this broker"
        if not effective.shedding_on:
            return "shedding-off", effective.shedding_why
        return None

    def record_end(self, decision_id: str, ended: EndedOperation, term: int) -> None:
        record = outcome_record(
            decision_id,
            ended.bundle,
            ended.result,
            ended.why,
            operation=ended.operation,
            at_ms=self.clocks.log_ms(),
            term=term,
            leader=self.channel.identity.broker,
            took_ms=ended.took_s * 1_000,
            bounds=self.bounds,
        )
        self.write(record)
