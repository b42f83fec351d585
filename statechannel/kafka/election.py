"""Leader election by a consumer group: the member that is assigned partition 0 of the election topic leads."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import Consumer, KafkaError

from statechannel.engine.inputs import LeadershipChanged
from statechannel.kafka.client_settings import make_client
from statechannel.kafka.errors import describe

if TYPE_CHECKING:
    from confluent_kafka import TopicPartition

    from statechannel.engine.inputs import Input
    from statechannel.kafka.client_settings import ClientSettings

_log = logging.getLogger(__name__)


class LoopProgress(NamedTuple):
    """Progress of the loop that acts as leader.

    Attributes:
        last_s: Monotonic time at which it last made progress; asked in the election's thread.
        limit_s: A loop that halts for longer may not lead: by then the others consider this process lost.
    """

    last_s: Callable[[], float]
    limit_s: float


class LeaderElection:
    """Candidate for leadership in a classic consumer group with dynamic membership.

    Sticky: a joining member takes nothing from the leader. Leadership is a convenience
    (who places bundles, who pays debts first), never a fence: proposals of an old leader lose by
    rule. Nevertheless a leader whose own thread has not run for half a session steps down before
    it does anything else, and then stands again. So does one whose loop makes no progress: the
    leadership of a process that cannot act must be free for another. It stands again when the loop makes progress.

    Args:
        topic: The election topic. Of its partitions only 0 counts: another member may be assigned an extra one.
        group_id: One group a channel.
        sink: Takes `LeadershipChanged`, from the election's own thread, only when it changes.
        on_failure: Called once from the election's thread if it ends by an exception.
        progress: When the loop that acts on the seat last made progress.
        clock: Monotonic seconds; for tests.
    """

    def __init__(
        self,
        settings: ClientSettings,
        topic: str,
        group_id: str,
        sink: Callable[[Input], None],
        *,
        on_failure: Callable[[BaseException], None] | None = None,
        progress: LoopProgress | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._topic = topic
        self._sink = sink
        self._on_failure = on_failure
        self._progress = progress
        self._clock = clock
        session_s = settings.tuning.session_timeout_ms / 1_000
        self._lease_s = session_s / 2
        self._poll_s = min(0.1, session_s / 20)
        self._wanted = threading.Event()
        self._stopping = threading.Event()
        self._candidate = False
        self._elected = False
        self._reported: set[int] = set()
        self._polled_s = clock()
        self._looked_s = self._polled_s
        config = settings.election_config(group_id)
        self._consumer = make_client(Consumer, config, settings, "making the election's consumer")
        self._thread = threading.Thread(target=self._run, name="leader-election", daemon=True)
        self._thread.start()

    def stand(self, stand: bool) -> None:
        """Enter the election, or leave it and resign. Returns at once."""
        if stand:
            self._wanted.set()
        else:
            self._wanted.clear()

    def close(self, timeout_s: float = 10.0) -> bool:
        """Leave the group at once, so that a successor need not wait for the session to expire.

        If this member was elected, `LeadershipChanged(False)` comes first. False if the thread did
        not end in time.
        """
        self._stopping.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._step()
        except BaseException as error:  # the thread's end must not pass unseen
            _log.exception("the election's thread ended")
            if self._on_failure is None:
                raise
            self._on_failure(error)
        finally:
            self._notify(elected=False)
            self._consumer.close()

    def _step(self) -> None:
        self._check_lease()
        if self._may_stand() != self._candidate:
            self._enter_or_leave()
        # Polled also while not standing: that is how the library gets to leave the group.
        message = self._consumer.poll(self._poll_s)
        self._adopt_assignment()
        error = None if message is None else message.error()
        if error is not None:
            self._report(error)
            if error.code() == KafkaError._MAX_POLL_EXCEEDED:  # noqa: SLF001 (public code)
                self._notify(elected=False)

    def _report(self, error: KafkaError) -> None:
        """Once for each kind: what keeps this member out of the group comes again every few seconds."""
        if error.code() in self._reported:
            return
        self._reported.add(error.code())
        foreign = error.code() == KafkaError.INCONSISTENT_GROUP_PROTOCOL
        advice = "; another client is in the group, `statechannel doctor` names it" if foreign else ""
        _log.warning("election: %s%s", describe(error, self._settings.secrets()), advice)

    def _may_stand(self) -> bool:
        if not self._wanted.is_set():
            return False
        progress = self._progress
        halted_s = 0.0 if progress is None else self._clock() - progress.last_s()
        if progress is None or halted_s <= progress.limit_s:
            return True
        if self._candidate:
            _log.warning("election: the loop has made no progress for %.1f s, resigning", halted_s)
        return False

    def _adopt_assignment(self) -> None:
        """Take over leadership that the library holds without having reported it.

        A member that stands again during a rebalance keeps its assignment: for the library nothing is new then, so
        the callback is not called, and the channel would have no leader while this member lives. Checked now and then, and
        not immediately after stepping down: losses in between are reported by then.
        """
        now_s = self._clock()
        if self._elected or not self._candidate:
            self._looked_s = now_s
        elif now_s - self._looked_s > self._lease_s and now_s - self._polled_s <= self._lease_s:
            self._looked_s = now_s
            if _has_seat(self._consumer.assignment()):
                _log.warning("election: assigned without a callback, taking over leadership")
                self._notify(elected=True)

    def _check_lease(self) -> None:
        """Step down if this thread was not running: the group may have a new leader by now."""
        now_s = self._clock()
        silent_s, self._polled_s = now_s - self._polled_s, now_s
        if self._candidate and silent_s > self._lease_s:
            _log.warning("election: not run for %.1f s, standing again", silent_s)
            self._notify(elected=False)
            self._looked_s = now_s
            self._leave()  # the next step stands again

    def _enter_or_leave(self) -> None:
        if not self._candidate:
            self._candidate = True
            self._consumer.subscribe(
                [self._topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
            )
        else:
            self._notify(elected=False)
            self._leave()

    def _leave(self) -> None:
        self._candidate = False
        self._consumer.unsubscribe()

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._reported.clear()  # it is in the group
        consumer.incremental_assign(partitions)
        if not partitions:
            return
        consumer.pause(partitions)  # nothing is ever read here
        if not _has_seat(partitions):
            return
        if self._clock() - self._polled_s <= self._lease_s:
            self._notify(elected=True)
        # Else this thread was frozen inside the poll, and the next step leaves the group.

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if _has_seat(partitions):
            self._notify(elected=False)
        consumer.incremental_unassign(partitions)

    def _notify(self, *, elected: bool) -> None:
        if elected is not self._elected:
            self._elected = elected
            self._sink(LeadershipChanged(elected))


def _has_seat(partitions: list[TopicPartition]) -> bool:
    return any(partition.partition == 0 for partition in partitions)
