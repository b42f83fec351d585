"""Planted bugs in the join: the lenient reader, and the switch to strict judging."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from statechannel.engine.cold_start import ColdStart
from statechannel.engine.log_head import LogHead
from statechannel.engine.proposals import Restating
from statechannel.protocol import replica as replica_module
from statechannel.protocol.cold_start_marks import Marks
from statechannel.protocol.joiner import Aside, HeldRecord, Joiner
from statechannel.protocol.record import Kind
from statechannel.protocol.replica import Replica
from statechannel.sim import stage
from tests.mutants.planting import Patcher, nothing, plant

PROTOCOL = "protocol"
# A clean heartbeat makes the last record of every key the right one; without one (cold start) the lenient rule counts.
ENGINE = "engine"


def _take(patcher: Patcher, wanted: Callable[[Any, Any, int], bool]) -> None:
    """A joiner that takes a record iff `wanted(held, record, offset)`."""

    def make(_: Callable[..., Any]) -> Callable[..., Any]:
        def bent(joiner: Joiner, offset: int, key: bytes, record: Any) -> None:
            held = joiner.held.get(key)
            if held is None or wanted(held, record, offset):
                joiner.held[key] = HeldRecord(offset, record)

        return bent

    patcher.bend(Joiner, "take", make)
    patcher.bend(
        Joiner, "read_late", lambda _: _read_at_once
    )  # late decoding leaves out what the right rule would replace


def _read_at_once(joiner: Joiner, records: Any) -> None:
    for record in records:
        joiner.read(record.offset, record.key, record.value)


@plant(PROTOCOL, "a joiner insists on versions without gaps")
def _strict_joiner(patcher: Patcher) -> None:
    _take(patcher, lambda held, record, _: record.version == held.record.version + 1)


@plant(PROTOCOL, "a joiner goes by versions alone")
def _covers_ignored(patcher: Patcher) -> None:
    _take(patcher, lambda held, record, _: record.version >= held.record.version + (record.kind is Kind.PROPOSAL))


@plant(PROTOCOL, "a joiner goes by `covers` alone")
def _versions_ignored(patcher: Patcher) -> None:
    _take(patcher, lambda held, record, _: record.covers >= held.offset)


@plant(ENGINE, "a joiner believes the last record of each key")
def _last_one_wins(patcher: Patcher) -> None:
    _take(patcher, lambda _held, _record, _offset: True)


@plant(ENGINE, "a joiner takes a proposal of the version it holds", end="late_losers")
def _equal_version_taken(patcher: Patcher) -> None:
    _take(patcher, lambda held, record, _: record.version >= held.record.version or record.covers >= held.offset)


@plant(PROTOCOL, "a joiner believes records of a bundle that are older than its parent")
def _stale_children_believed(patcher: Patcher) -> None:
    def make(walk: Callable[..., Any]) -> Callable[..., Any]:
        def bent(joiner: Joiner, view: Any, name: bytes, parts: Any, held: HeldRecord) -> None:
            prefix = parts.namespace.encode() + b"/"
            raised = {key: one for key, one in joiner.held.items() if key.startswith(prefix)}
            versions = {key: one.record.version for key, one in raised.items()}
            for one in raised.values():
                one.record.version += 1_000_000
            walk(joiner, view, name, parts, held)
            for key, one in raised.items():
                one.record.version = versions[key]
            for state in view.existing():
                if state.version >= 1_000_000:
                    state.version -= 1_000_000
                if state.ring is not None and state.ring.highest >= 1_000_000:
                    state.ring.highest -= 1_000_000

        return bent

    patcher.bend(Joiner, "_walk", make)


@plant(PROTOCOL, "what settled a key is not known after a join")
def _settled_lost_at_join(patcher: Patcher) -> None:
    def make(view: Callable[..., Any]) -> Callable[..., Any]:
        def bent(joiner: Joiner) -> Any:
            joiner.last.clear()
            return view(joiner)

        return bent

    patcher.bend(Joiner, "view", make)


@plant(PROTOCOL, "any heartbeat ends a join")
def _clean_to_ignored(patcher: Patcher) -> None:
    def make(control_read: Callable[..., Any]) -> Callable[..., Any]:
        def bent(aside: Aside, record: Any) -> None:
            control_read(aside, record)
            if record.key == b"!heartbeat":
                aside.clean_to = record.offset - 1

        return bent

    patcher.bend(Aside, "_control_read", make)


@plant(PROTOCOL, "a heartbeat that vouches for less than was read ends a join")
def _old_heartbeat_believed(patcher: Patcher) -> None:
    patcher.bend(Aside, "vouched_for", lambda _: lambda aside, _end_offset: aside.clean_to >= 0)


@plant(PROTOCOL, "records kept aside are lost at the switch")
def _kept_records_lost(patcher: Patcher) -> None:
    def make(cut: Callable[..., Any]) -> Callable[..., Any]:
        def bent(aside: Aside, through: int) -> Any:
            aside._kept.clear()
            return cut(aside, through)

        return bent

    patcher.bend(Aside, "cut", make)


@plant(PROTOCOL, "records kept aside are all taken leniently")
def _all_kept_leniently(patcher: Patcher) -> None:
    def make(cut: Callable[..., Any]) -> Callable[..., Any]:
        return lambda aside, through: cut(aside, aside._kept[-1].offset if aside._kept else through)

    patcher.bend(Aside, "cut", make)


@plant(PROTOCOL, "a caught-up reader reads on after a gap")
def _gap_ignored(patcher: Patcher) -> None:
    def make(read: Callable[..., Any]) -> Callable[..., Any]:
        def bent(replica: Any, now_s: float, record: Any) -> Any:
            replica.position = record.offset
            return read(replica, now_s, record)

        return bent

    patcher.bend(Replica, "_read_strictly", make)
    patcher.bend(Replica, "reached", lambda _: _reached_past_gap)


def _reached_past_gap(replica: Any, _now_s: float, position: int) -> None:
    replica.position = max(replica.position, position)


@plant(PROTOCOL, "a joiner that waits does not mind records cleaned away since it began")
def _gap_while_waiting(patcher: Patcher) -> None:
    def make(gap: Callable[..., Any]) -> Callable[..., Any]:
        def bent(replica: Any, now_s: float, offset: int, timestamp_ms: int = 0) -> Any:
            before, replica.end_offset = replica.end_offset, max(replica.end_offset, offset)
            try:
                return gap(replica, now_s, offset, timestamp_ms)
            finally:
                replica.end_offset = before

        return bent

    patcher.bend(Replica, "_gap", make)


@plant(PROTOCOL, "a log with gaps is judged strictly from the start")
def _gaps_judged_strictly(patcher: Patcher) -> None:
    patcher.bend(Replica, "_gap", lambda _: lambda _replica, _now_s, _offset, _timestamp_ms=0: True)


@plant(ENGINE, "every missing offset was compacted, also that of a transaction marker")
def _every_gap_is_compaction(patcher: Patcher) -> None:
    patcher.bend(Replica, "_never_held", lambda _: lambda _replica, _now_s, _offset, _timestamp_ms=0: False)


@plant(ENGINE, "who joins takes a log that begins above offset 0 for a compacted one", end="lost_heads")
def _lost_head_joined(patcher: Patcher) -> None:
    patcher.bend(Marks, "restates", lambda _: lambda _marks, _first_offset, _known: True)


@plant(ENGINE, "nobody restates what was deleted", end="lost_heads")
def _head_not_restated(patcher: Patcher) -> None:
    patcher.bend(LogHead, "_restate", nothing)


@plant(ENGINE, "states are forgotten where records were deleted that no member had read", end="lost_heads")
def _unread_deletion_forgets(patcher: Patcher) -> None:
    patcher.bend(
        ColdStart, "_is_stuck", lambda real: lambda self, replica: not replica.is_headless and real(self, replica)
    )


@plant(ENGINE, "and the log that is left is taken for the truth", end="lost_heads")
def _unread_deletion_is_all(patcher: Patcher) -> None:
    patcher.bend(replica_module, "continued", lambda _: lambda _kept, since, _applied: since)


@plant(ENGINE, "the mark of a lost head is written before what was deleted is asserted", end="lost_heads")
def _head_marked_at_once(patcher: Patcher) -> None:
    patcher.bend(Restating, "go_on", lambda _: lambda _run, _context, _proposals, _partition, *, since=None: True)


@plant(ENGINE, "a cold start goes on at the versions that it has read")
def _cold_start_at_the_same_versions(patcher: Patcher) -> None:
    patcher.bend(replica_module, "lift", lambda _: lambda _view, _version: [])


@plant(ENGINE, "a process that starts takes the number of partitions from Kafka", needs="added_partitions")
def _number_taken_from_kafka(patcher: Patcher) -> None:
    patcher.bend(stage, "first_count", lambda _: lambda _records: None)


@plant(ENGINE, "and goes on where others use another number", needs="added_partitions")
def _other_numbers_ignored(patcher: Patcher) -> None:
    patcher.bend(stage, "first_count", lambda _: lambda _records: None)
    patcher.bend(Replica, "_counts_like", lambda _: lambda _replica, _heartbeat: True)


@plant(ENGINE, "nobody compares what heartbeats say of their writers' views", end="bent_views")
def _views_not_compared(patcher: Patcher) -> None:
    patcher.bend(Replica, "_compare", nothing)


@plant(ENGINE, "who joins does not compare what it read with what its voucher holds", end="bent_views")
def _voucher_not_compared(patcher: Patcher) -> None:
    patcher.bend(Replica, "_is_vouched", lambda _: lambda _replica, _aside, _view: True)


@plant(PROTOCOL, "no missing offset was compacted")
def _no_gap_is_compaction(patcher: Patcher) -> None:
    def bent(replica: Any, _now_s: float, offset: int, _timestamp_ms: int = 0) -> bool:
        replica.position = offset
        return True

    patcher.bend(Replica, "_never_held", lambda _: bent)


@plant(PROTOCOL, "a slow joiner does not start over")
def _half_lag_ignored(patcher: Patcher) -> None:
    def make(init: Callable[..., Any]) -> Callable[..., Any]:
        def bent(replica: Any, *args: Any, **kwargs: Any) -> None:
            init(replica, *args, **kwargs)
            replica._half_lag_s = 1e12

        return bent

    patcher.bend(Replica, "__init__", make)


@plant(PROTOCOL, "a reader that starts over keeps its old view")
def _old_view_kept(patcher: Patcher) -> None:
    def make(_: Callable[..., Any]) -> Callable[..., Any]:
        def bent(replica: Any, why: str) -> None:
            replica.phase, replica.why = replica_module.Phase.CAUGHT_UP, why

        return bent

    patcher.bend(Replica, "_start_over", make)
