"""The runner's ledger: each event to the journal on disk first, then to the topic; wishes come from the topic."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from shedders.partitions.execution.seen import Asked
from shedders.partitions.execution.state_book import record
from statechannel.kafka.errors import KafkaAdapterError

if TYPE_CHECKING:
    from shedders.partitions.execution.journal import Journal
    from shedders.partitions.execution.state_topic import StateTopic

BACKLOG_MAX: Final = 10_000
EVENTS_AT_ONCE: Final = 50
BEATS: Final = 4
"""Heartbeats within the time after which an executor is taken for dead."""


class ExecutionLedger:
    """See the module.

    Args:
        now_ms: Wall clock.
        on_batch: Called before a batch is written down: rollback files.
    """

    def __init__(
        self,
        journal: Journal,
        topic: StateTopic,
        plan_id: str,
        executor: str,
        *,
        now_ms: Callable[[], int],
        on_batch: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._journal, self._topic = journal, topic
        self._plan_id, self._executor = plan_id, executor
        self._now_ms, self._on_batch = now_ms, on_batch
        self._number = max((int(one["n"]) for one in journal.events), default=0)
        self._backlog: list[dict[str, Any]] = []
        self._heard = Asked()
        self.topic_trouble = ""

    def write(self, event: str, facts: Mapping[str, Any]) -> None:
        """See `runner.Ledger`. What the topic does not take is written with the next event; the journal has it.

        Raises:
            StateFolderError: The journal cannot be written.
        """
        if event == "batch":
            self._on_batch(facts)
        self._number += 1
        whole = {"n": self._number, "at_ms": self._now_ms(), "executor": self._executor, "event": event, **facts}
        try:
            self._journal.append(whole)
        finally:  # on a full disk the topic is the only place that still learns how it ends
            self._backlog.append(whole)
            self.flush()

    def flush(self) -> None:
        """Give the topic what it has not taken yet."""
        while self._backlog:
            part = self._backlog[:EVENTS_AT_ONCE]
            try:
                self._topic.append(
                    self._plan_id, [record("events", self._plan_id, executor=self._executor, events=part)]
                )
            except KafkaAdapterError as error:
                self.topic_trouble = str(error)
                del self._backlog[:-BACKLOG_MAX]
                return
            self.topic_trouble = ""
            del self._backlog[: len(part)]

    def publish(self, events: list[dict[str, Any]]) -> None:
        """Events that the journal has and the topic has not."""
        self._backlog = [*events, *self._backlog]
        self.flush()

    def heard(self) -> tuple[Asked, str]:
        """See `runner.Ledger`; while the topic cannot be read, what was heard last holds."""
        try:
            book = self._topic.read()
        except KafkaAdapterError as error:
            self.topic_trouble = str(error)
            return self._heard, ""
        self._heard = book.book(self._plan_id).asked
        holder = book.holder
        other = "" if holder is None or holder.executor == self._executor else f"{holder.executor} on {holder.host}"
        return self._heard, other


class Heart:
    """Says on the topic that this executor lives, from a thread of its own; a context manager.

    Args:
        every_s: Between two beats.
    """

    def __init__(self, topic: StateTopic, plan_id: str, executor: str, *, every_s: float) -> None:
        self._topic, self._plan_id, self._executor, self._every_s = topic, plan_id, executor, every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="partitions-heart", daemon=True)

    def __enter__(self) -> Heart:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(timeout=self._every_s + 5.0)

    def _run(self) -> None:
        beat = record("beat", self._plan_id, executor=self._executor)
        while not self._over.wait(self._every_s):
            try:
                self._topic.append(self._plan_id, [beat])
            except KafkaAdapterError:
                continue  # the next one may get through; others take us for dead if none does
