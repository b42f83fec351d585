"""What a member finds in the channel's log as it reads, for operators: transactions, brokers that hold other states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from statechannel.engine.context import Context
    from statechannel.protocol.replica import Replica

REPORT_GAP_S: Final = 10.0
"""Between two reports of transactions in one partition: each of them takes an offset."""
DIFFERS_KEPT_S: Final = 60.0
"""A difference that no heartbeat has shown for so long is not reported any more."""
REPORTED_MAX: Final = 10
"""Differences in one registry record, which every member reads."""


class LogFindings:
    """Reports what the replicas of one engine have noted; no broker stops for it, as the one that differs may be right."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._differing: dict[tuple[int, str], dict[str, Any]] = {}
        self._counting: dict[tuple[int, str], int] = {}
        self._next_s: dict[int, float] = {}
        self._offsets: dict[tuple[int, str], int] = {}
        self._seen_s: dict[tuple[int, str], float] = {}

    def tick(self) -> None:
        """Report what is new since the last call, and hash what has changed since then."""
        for replica in self._context.replicas:
            if replica.caught_up:
                replica.summary()
            if replica.unused:
                self._report_unused(replica)
            if replica.compared or self._differing:
                self._report_differing(replica)
            if replica.other_counts or self._counting:
                self._report_counts(replica)

    def _report_unused(self, replica: Replica) -> None:
        context, now_s = self._context, self._context.now.mono_s
        if now_s < self._next_s.get(replica.partition, 0.0):
            return
        self._next_s[replica.partition] = now_s + REPORT_GAP_S
        unused, replica.unused = replica.unused, []
        count = sum(last - first + 1 for first, last in unused)
        context.emit(
            "log.transaction", partition=replica.partition, first=unused[0][0], through=unused[-1][1], count=count
        )

    def _report_differing(self, replica: Replica) -> None:
        context, partition = self._context, replica.partition
        now_s, alive = context.now.mono_s, context.members.alive
        for place in [p for p in self._differing if p[0] == partition]:
            if place[1] not in alive or now_s - self._seen_s[place] > DIFFERS_KEPT_S:
                del self._differing[place]
        for broker, comparison in replica.compared.items():
            place = partition, broker
            if broker not in alive or self._offsets.get(place) == comparison.offset:
                continue
            self._offsets[place], self._seen_s[place] = comparison.offset, now_s
            if comparison.is_equal:
                if self._differing.pop(place, None) is not None:
                    context.emit("replica.agrees", partition=partition, member=broker, offset=comparison.offset)
                continue
            before, offset = self._differing.get(place), comparison.offset
            equal_at, keys, their_keys = comparison.equal_at, comparison.own.keys, comparison.theirs.keys
            facts = {"equal_at": equal_at, "keys": keys, "their_keys": their_keys}
            if before is None:
                context.emit(
                    "replica.differs",
                    partition=partition,
                    member=broker,
                    offset=offset,
                    equal_at=equal_at,
                    keys=keys,
                    their_keys=their_keys,
                )
            if before is None or not facts.items() <= before.items():
                self._differing[place] = {"partition": partition, "broker": broker, "offset": offset, **facts}

    def _report_counts(self, replica: Replica) -> None:
        partition = replica.partition
        counts = {(partition, broker): number for broker, number in replica.other_counts.items()}
        for place, number in counts.items():
            if self._counting.get(place) != number:
                self._context.emit(
                    "replica.counts-differ",
                    partition=partition,
                    member=place[1],
                    partitions=replica.partitions,
                    their_partitions=number,
                )
        others = {place: number for place, number in self._counting.items() if place[0] != partition}
        self._counting = others | counts

    def fields(self) -> list[dict[str, Any]] | None:
        """With whom this process differs, and since which offset; None if it agrees with all.

        The same for as long as a difference is: most heartbeats repeat the one before.
        """
        return [*self._differing.values()][:REPORTED_MAX] or None
