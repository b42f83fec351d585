"""How many bundles each broker has, read again and again from the live channel: for progress bars."""

from __future__ import annotations

import time
from collections import Counter

from statechannel.cli.connection import Connection
from statechannel.cli.live_log import describe_topic, now_ms, open_tail
from statechannel.core.auditor import audit_full, audit_join
from statechannel.core.inputs import Topic
from statechannel.core.keys import KeyState
from statechannel.core.states import State
from statechannel.core.survey import has_gaps

_REST = 4.0
_LEAST_WAIT_S = 0.5


class Holdings:
    """Counts bundles; never spends more than a fifth of the time on it.

    Attributes:
        counts: By broker, as of the last look: what it serves, or is about to get.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._partitions: int | None = None
        self._next_s = 0.0
        self.counts: Counter[str] = Counter()

    def look(self, *, anyhow: bool = False) -> Counter[str]:
        """Look if it is time to, or anyhow.

        Raises:
            KafkaAdapterError: Kafka is away, or the topic is missing.
        """
        begun_s = time.monotonic()
        if not anyhow and begun_s < self._next_s:
            return self.counts
        self.counts = self._read()
        took_s = time.monotonic() - begun_s
        self._next_s = begun_s + took_s + max(_LEAST_WAIT_S, _REST * took_s)
        return self.counts

    def _read(self) -> Counter[str]:
        if self._partitions is None:
            self._partitions = describe_topic(self._connection, Topic.CHANNEL).partitions
        lag_ms = self._connection.settings.channel.min_compaction_lag_ms
        found: Counter[str] = Counter()
        for partition in range(self._partitions):
            with open_tail(self._connection, Topic.CHANNEL, partition) as tail:
                span = tail.span()
                records = list(tail.records(span))
            if has_gaps(records, span.end):
                part = audit_join(partition, self._partitions, records, oldest_kept_ms=now_ms() - lag_ms)
            else:
                part = audit_full(partition, self._partitions, records)
            found.update(name for key in part.view.existing() for name in _holders(key))
        return found


def _holders(key: KeyState) -> set[str]:
    if key.is_namespace or key.state is State.DELETED:
        return set()
    return {name for name in (key.owner, key.bound_for) if name is not None}
