"""Metrics of the job table-view beyond those that every job has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

if TYPE_CHECKING:
    from spark.channel.table import BatchOutcome
    from spark.core.store import Pointer

_log = structlog.get_logger(__name__)


class TableFigures:
    """What the batches say, and the alarm where the archive is about to miss records.

    Args:
        alarm_after_ms: A quarter of the compaction lag: what lies unread for longer may soon be cleaned away.

    Attributes:
        records: New ones since the start.
    """

    def __init__(self, registry: CollectorRegistry, alarm_after_ms: int) -> None:
        self._alarm_after_ms = alarm_after_ms
        self._alarmed = False
        self.records = 0
        self.verdicts = Counter(
            "statechannel_spark_verdicts_total", "Records archived, by verdict.", ["verdict"], registry=registry
        )
        self.oldest_s = self._gauge(
            registry, "oldest_unread_seconds", "How long the oldest record of the batch waited."
        )
        self.alarm = self._gauge(registry, "archive_lag_alarm", "1: that is more than a quarter of the compaction lag.")
        self.sequence = self._gauge(registry, "snapshot_sequence", "Newest snapshot.")
        self.keys = self._gauge(registry, "view_keys", "Keys with an accepted state.")
        self.bundles = self._gauge(registry, "view_bundles", "Live bundles.")
        self.debts = self._gauge(registry, "view_debts", "Keys in debt.")

    @staticmethod
    def _gauge(registry: CollectorRegistry, name: str, meaning: str) -> Gauge:
        return Gauge(f"statechannel_spark_{name}", meaning, registry=registry)

    def begins(self, pointer: Pointer | None) -> None:
        """What the table holds already."""
        if pointer is None:
            return
        self.sequence.set(pointer.sequence)
        for gauge, name in ((self.keys, "keys"), (self.bundles, "bundles"), (self.debts, "debts")):
            gauge.set(pointer.meta[name])

    def took(self, outcome: BatchOutcome) -> None:
        """A batch is published."""
        for verdict, count in (outcome.verdicts or {}).items():
            self.verdicts.labels(verdict or "none").inc(count)
        self.records += outcome.records
        self.oldest_s.set(outcome.oldest_unread_ms / 1_000)
        if outcome.sequence is not None:
            self.sequence.set(outcome.sequence)
        if outcome.published is not None:
            self.keys.set(outcome.published.keys)
            self.bundles.set(outcome.published.bundles)
            self.debts.set(outcome.published.debts)
        late = 0 < self._alarm_after_ms < outcome.oldest_unread_ms
        self.alarm.set(late)
        if late and not self._alarmed:
            _log.error(
                "the archive is late: records may be cleaned away before it reads them",
                oldest_unread_s=outcome.oldest_unread_ms // 1_000,
                alarm_after_s=self._alarm_after_ms // 1_000,
            )
        self._alarmed = late
