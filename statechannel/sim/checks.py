"""The invariants of protocol.md section 9, after every step of the engine level: histories, service, membership, forgeries."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from statechannel.protocol import codec
from statechannel.protocol.bundle import parse_key
from statechannel.protocol.codec import COLD_START_KEY, HEARTBEAT_KEY, decode_heartbeat
from statechannel.protocol.cold_start_marks import Mark, decode_mark
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.record import Record
from statechannel.protocol.replica import KEPT_UP_S, Phase
from statechannel.protocol.states import State
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view_rows import duplicate
from statechannel.sim.trace import Violation
from statechannel.sim.truth import TrueState, Truth, accepted_of, compare, misleading, vouched_to

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from statechannel.engine.commands import Rejected
    from statechannel.engine.effects import Append
    from statechannel.protocol.replica import Replica
    from statechannel.sim.cluster import SimCluster
    from statechannel.sim.process import SimProcess


class Forgeries:
    """What forgers have written, and which victims have read it."""

    def __init__(self) -> None:
        self._victims: dict[tuple[int, int], str] = {}
        self._contents: dict[tuple[bytes, bytes | None], str] = {}
        self._read: dict[str, set[tuple[int, int]]] = {}

    @staticmethod
    def own_record(process: SimProcess, entry: RecordRead) -> Record | None:
        """The entry of a log as a record of a process; None where it names another one, or cannot be decoded."""
        parts = None if entry.key is None else parse_key(entry.key)
        if parts is None or entry.value is None:
            return None
        record = codec.decode(entry.value, namespace=parts.is_namespace)
        if not isinstance(record, Record) or (record.broker, record.incarnation) != (
            process.broker,
            process.incarnation,
        ):
            return None
        return record

    def written(self, victim: SimProcess, key: bytes, value: bytes | None) -> None:
        """A forger is about to write in the name of this process."""
        self._contents[key, value] = victim.incarnation

    def appended(self, record: RecordRead) -> None:
        """A record is in the log; a forged one may be there more than once."""
        incarnation = self._contents.get((record.key or b"", record.value))
        if incarnation is not None:
            self._victims[record.partition, record.offset] = incarnation

    def is_forged(self, partition: int, offset: int) -> bool:
        return (partition, offset) in self._victims

    def stepped(self, process: SimProcess, records: Iterable[RecordRead]) -> None:
        """A process has taken in some records: it has counted each that bears its name and is not its own, and no other."""
        seen = self._read.setdefault(process.incarnation, set())
        for record in records:
            place = (record.partition, record.offset)
            if record.topic is Topic.CHANNEL and self._victims.get(place) == process.incarnation:
                seen.add(place)
        if process.engine.stopped is None and process.engine.provenance.forged != len(seen):
            raise Violation(
                "forged",
                f"{process.name} counts {process.engine.provenance.forged} forged records, and has read {len(seen)}",
            )

    def emitted(self, process: SimProcess, facts: dict[str, Any]) -> None:
        if self._victims.get((facts["partition"], facts["offset"])) != process.incarnation:
            raise Violation("forged", f"{process.name} calls the record at {facts['offset']} forged, and it is not")


SILENCE_AT_LEAST_S = 2.0
LOOK_BACK_S = 15.0
WELL_FOR_S = 15.0
HEARD_WITHIN_S = 5.0
"""By then a healthy member has sent several heartbeats, and every undisturbed process has read one."""


class PresenceChecks:
    """Reads the registry as it lands."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._heard_s: dict[tuple[str, str], list[float]] = {}
        self._left: set[str] = set()
        self._claims: set[tuple[str, str]] = set()
        self._caught_up_since_s: dict[SimProcess, float] = {}

    def registered(self, value: bytes) -> None:
        info: dict[str, Any] = orjson.loads(value)
        if info["kind"] != "member":
            return
        broker = info["broker"]
        self._heard_s.setdefault((broker, info["incarnation"]), [-1e9]).append(self._cluster.events.now_s)
        if info["leaving"]:
            self._left.add(broker)
        if info["leading"]:
            self._claims.add((broker, info["incarnation"]))

    def stepped(self, process: SimProcess) -> None:
        """A leader acts only after its registry record was read back."""
        if process.engine.caught_up:
            self._caught_up_since_s.setdefault(process, self._cluster.events.now_s)
        else:
            self._caught_up_since_s.pop(process, None)
        if process.engine.leading and (process.broker, process.incarnation) not in self._claims:
            raise Violation("leader", f"{process.name} leads, but its claim is not in the registry")

    def forced(self, record: Record) -> None:
        """A repair that calls a broker lost: that one must have been silent for a while not long ago."""
        about = record.raw.get("lost")
        if not record.forced or not isinstance(about, dict) or about.get("broker") in self._left:
            return
        # It may land long after it was written, so its own time counts.
        now_s = self._cluster.written_at_s(record)
        # Another process with the same broker id, which this one replaced, may go on until it reads of that.
        heard_s = self._heard_s.get((about["broker"], str(about.get("incarnation"))), [])
        edges = [now_s - LOOK_BACK_S, *(when_s for when_s in heard_s if 0 < now_s - when_s < LOOK_BACK_S), now_s]
        silence_s = max(later - earlier for earlier, later in pairwise(edges))
        if silence_s < SILENCE_AT_LEAST_S:
            raise Violation("repair", f"{about} is called lost, but was never silent for more than {silence_s:.2f} s")

    def starts_cold(self, process: SimProcess) -> None:
        """A cold start is for when no caught-up member exists."""
        self._no_member_is_caught_up(process, "starts cold", WELL_FOR_S)

    def stands_to_start_cold(self, process: SimProcess) -> None:
        """A process that is not caught up stands for leader only for a cold start.

        A disturbed process is left out: it may hear no member.
        """
        if process.undisturbed:
            does = "stands for leader without having caught up"
            self._no_member_is_caught_up(process, does, HEARD_WITHIN_S, HEARD_WITHIN_S)

    def _no_member_is_caught_up(
        self, process: SimProcess, does: str, well_for_s: float, caught_up_for_s: float = 0.0
    ) -> None:
        now_s = self._cluster.events.now_s
        for other in self._cluster.alive():
            well = other.undisturbed and now_s - other.well_since_s > well_for_s
            well = well and now_s - self._caught_up_since_s.get(other, now_s) >= caught_up_for_s
            if well and other is not process and other.engine.caught_up and other.engine.mode == "normal":
                raise Violation("cold-start", f"{process.name} {does} although {other.name} is caught up and well")


_FULL_CHECK_EVERY = 24
_ROUNDED_S = 0.002
_CLOCKS_APART_MS = 2_500  # what a reader knows of log time it has from the registry


def overlap(first: str, second: str) -> bool:
    if first == second:
        return True
    a, b = parse_key(first.encode()), parse_key(second.encode())
    return a is not None and b is not None and a.namespace == b.namespace and a.lower < b.upper and b.lower < a.upper


class _Assumed(NamedTuple):
    """What counts once the mark of a cold start is in the log."""

    truth: Truth
    differs: bool


class OperationAnswers:
    """Which operations the log has accepted, and which ones a caller heard to be refused: never the same one."""

    def __init__(self) -> None:
        self._accepted: dict[str, int] = {}
        self._refused: dict[str, str] = {}

    def accept(self, operation: str, offset: int) -> None:
        self._accepted.setdefault(operation, offset)
        if operation in self._refused:
            raise Violation("answer", f"{self._refused[operation]}, but it is accepted at {offset}")

    def refuse(self, operation: str, who: str, outcome: Rejected) -> None:
        offset = self._accepted.get(operation)
        if offset is not None:
            raise Violation("answer", f"{who} says {outcome}, but it was accepted at {offset}")
        self._refused[operation] = f"{who} said {outcome}"

    def forget_refusals(self) -> None:
        """The loss that a cold start may bring: what was refused may count as accepted from here on (late copies too)."""
        self._refused.clear()


class SimChecks:
    """What must hold, and the bookkeeping that it takes to see that it does."""

    def __init__(self, cluster: SimCluster, presence: PresenceChecks, forgeries: Forgeries) -> None:
        self._cluster = cluster
        self._since_full: dict[tuple[str, int], int] = {}
        self.operations = OperationAnswers()
        self._presence = presence
        self.forgeries = forgeries
        # Who judges on as before a cold start, by name and partition: offset of the mark at which it has to start over.
        self._old_history: dict[tuple[str, int], int] = {}
        self._heard_ms: dict[tuple[str, int], int] = {}  # log time of the newest heartbeat that it has read
        self._marks: set[tuple[int, int]] = set()  # partition and offset of those that count
        # By incarnation and partition, until the mark is in the log.
        self._assumed: dict[tuple[str, int], _Assumed] = {}
        # How far the log vouched by itself when the process, by name, had read the partition to its end.
        self._vouched: dict[tuple[str, int], int] = {}
        # By key: versions of accepted records that somebody wrote in another one's name.
        self._forged_versions: dict[bytes, list[int]] = {}
        # For good, whatever becomes of the truth: who served what, and the newest version of each namespace.
        self._servers: dict[int, dict[tuple[str, int], str]] = {}
        self._namespaces: dict[int, dict[bytes, int]] = {}

    def appended(self, who: str, record: RecordRead) -> None:
        """The omniscient reader reads every record as it lands."""
        cluster = self._cluster
        self.forgeries.appended(record)
        judgement = cluster.truths[record.partition].read(record)
        for (_, partition), assumed in self._assumed.items():
            if partition == record.partition:
                assumed.truth.read(record)
        if record.key == COLD_START_KEY:
            self._marked(record)
        verdict = "unjudged" if judgement is None else judgement.verdict
        if judgement is not None and verdict is Verdict.ACCEPTED and judgement.record is not None:
            operation = judgement.record.text("operation")
            if operation is not None:
                self.operations.accept(operation, record.offset)
            self._presence.forced(judgement.record)
            if self.forgeries.is_forged(record.partition, record.offset):
                self._forged_versions.setdefault(record.key or b"", []).append(judgement.record.version)
            self._grown(record, judgement.record.version)
        cluster.trace.count(f"verdict {verdict}")
        if judgement is None or judgement.record is None:
            what = "" if record.value is None else repr(record.value[:60])
        else:
            body = judgement.record
            what = (
                f"{body.kind} {body.state} v{body.version} {body.from_}->{body.to} on {body.base} "
                f"covers {body.covers} id {body.id}"
            )
            cluster.trace.count(f"{body.kind} {body.raw.get('action', '')} {verdict}")
        cluster.note(
            f"{who} {record.partition}/{record.offset} {(record.key or b'').decode(errors='replace')} {what}: {verdict}"
        )

    def marks(self, partition: int) -> list[int]:
        return [offset for place, offset in self._marks if place == partition]

    def _grown(self, record: RecordRead, version: int) -> None:
        """No namespace starts over."""
        key = record.key or b""
        if b"/0x" in key:
            return
        versions = self._namespaces.setdefault(record.partition, {})
        if version <= versions.get(key, 0):
            raise Violation("anew", f"{key.decode()} starts over at version {version} after {versions[key]}")
        versions[key] = version

    # --- who serves -------------------------------------------------------------------------------------------------

    def serving(self, process: SimProcess) -> None:
        """A process serves only by its own accepted record, and never beside another at the same generation."""
        now = process.engine.serving()
        self._writes(process, now)
        before = process.served
        if now == before:
            return
        process.served = now
        for bundle, generation in now.items():
            if before.get(bundle) != generation:
                self._begins(process, bundle, generation)
        for bundle, generation in before.items():
            if bundle not in now:
                self._cluster.note(f"{process.name} no longer serves {bundle} at {generation}")

    @staticmethod
    def _writes(process: SimProcess, serving: Mapping[str, int]) -> None:
        """A process takes writes only while its view says that the bundle is assigned to it."""
        engine = process.engine
        for bundle in serving:
            generation = engine.lease.accepts_writes_at(bundle, engine.now.mono_s)
            key = engine.key(bundle) if generation is not None else None
            if key is None or engine.context.stopped is not None:
                continue
            if (key.state, key.to, key.version) != (State.ASSIGNED, process.broker, generation):
                raise Violation(
                    "writes",
                    f"{process.name} takes writes to {bundle} at {generation}, which is {key.state} at {key.version}",
                )

    def _begins(self, process: SimProcess, bundle: str, generation: int) -> None:
        cluster = self._cluster
        cluster.note(f"{process.name} serves {bundle} at {generation}")
        cluster.trace.count("serving began")
        parts = parse_key(bundle.encode())
        if parts is None:
            raise Violation("serving", f"{process.name} serves {bundle}, which is not a bundle")
        truth = cluster.truths[process.engine.context.partition_of(parts.namespace)]
        grant = truth.grants.get((bundle, generation))
        if grant is None or grant.broker != process.broker:
            raise Violation("serving", f"{process.name} serves {bundle} at {generation}, granted: {grant}")
        if grant.writer is not None and grant.writer != (process.broker, process.incarnation):
            raise Violation(
                "serving", f"{process.name} serves {bundle} at {generation} by the record of {grant.writer}"
            )
        if grant.offset >= 0 and self.forgeries.is_forged(truth.view.partition, grant.offset):
            raise Violation(
                "forged", f"{process.name} serves {bundle} at {generation} by a record that it did not write"
            )
        self._serves_first(process, truth.view.partition, bundle, generation)
        for other in cluster.alive():
            if other is process:
                continue
            # A cut-off process of the time before a misled cold start is told apart by nobody until it reads the mark.
            past = (other.name, process.engine.context.partition_of(parts.namespace)) in self._old_history
            if other.served.get(bundle) == generation and not past:
                raise Violation("serving", f"{other.name} and {process.name} both serve {bundle} at {generation}")
            if cluster.options.lease and not other.halted:  # who halts is asked by the clock (`Lease.serves_at`)
                self._lease(process, other, bundle, generation)

    def _serves_first(self, process: SimProcess, partition: int, bundle: str, generation: int) -> None:
        """A generation is one process's for good, long after that has ended."""
        if (process.name, partition) in self._old_history:
            return
        first = self._servers.setdefault(partition, {}).setdefault((bundle, generation), process.name)
        if first != process.name:
            raise Violation("twice", f"{process.name} serves {bundle} at {generation}, as {first} did")

    def _lease(self, process: SimProcess, other: SimProcess, bundle: str, generation: int) -> None:
        forged = self._forged_versions.get(bundle.encode(), ())
        for name, before in other.served.items():
            # Who writes in the owner's name that it has let go is believed: only rights to write keep him out. The owner may
            # read late what it served by, after the destination has begun.
            older, newer = sorted((before, generation))
            let_go = name == bundle and any(older < version < newer for version in forged)
            if overlap(name, bundle) and not let_go:
                raise Violation(
                    "lease", f"{other.name} still serves {name} at {before} while {process.name} serves {bundle}"
                )

    # --- what is read -----------------------------------------------------------------------------------------------

    def read(self, process: SimProcess, record: RecordRead) -> None:
        """A caught-up replica equals the truth at its offset."""
        replica = process.engine.replicas[record.partition]
        place = (process.name, record.partition)
        if not replica.caught_up:
            was_caught_up = self._since_full.pop(place, None) is not None
            # A reader may also be opened anew, meet a gap here, or start over for a mark of before whose writer it did not know.
            has_read_it = replica.phase is Phase.START_OVER and replica.position > record.offset
            if was_caught_up and has_read_it and record.key == COLD_START_KEY and not self.marks(record.partition):
                raise Violation("mark", f"{process.name} starts over at {record.offset} for a mark that is void")
            return
        if self.judges_by_another_history(process, record.partition):
            return
        count = self._since_full.get(place, _FULL_CHECK_EVERY)
        if count >= _FULL_CHECK_EVERY:
            self._since_full[place] = 0
            self._cluster.trace.count("comparisons")
            compare(process.name, replica.view, self._cluster.truths[record.partition])
            return
        self._since_full[place] = count + 1
        self._compare_one(process, replica, record)

    def _compare_one(self, process: SimProcess, replica: Replica, record: RecordRead) -> None:
        truth = self._cluster.truths[record.partition]
        if record.key is None or replica.view.applied != record.offset or record.offset >= truth.end:
            return
        held = replica.view.keys.get(record.key)
        have = None if held is None or held.state is None else accepted_of(held)
        want = truth.states[record.offset].get(record.key)
        if have != want:
            raise Violation("history", f"{process.name} at {record.offset} holds {have} instead of {want}")

    def stepped(self, process: SimProcess) -> None:
        """Who is caught up uses the channel's number; who reads another's mark joins again, or waits until it knows that one."""
        used, partitions = process.engine.config.partitions, len(self._cluster.truths)
        if used != partitions and process.engine.caught_up:
            raise Violation(
                "partitions", f"{process.name} is caught up on {used} partitions, the channel uses {partitions}"
            )
        for replica in process.engine.replicas if self._old_history else ():
            place = (process.name, replica.partition)
            mark = self._old_history.get(place)
            if mark is None:
                continue
            took_it_in = replica.phase is Phase.WAITING and replica.applied >= mark
            if took_it_in or replica.phase in (Phase.CLOSED, Phase.START_OVER, Phase.READING):
                del self._old_history[place]
            elif replica.caught_up and replica.applied >= mark and process.engine.context.judges(replica.partition):
                raise Violation("mark", f"{process.name} judges on behind the mark of a cold start at {mark}")

    def heard(self, process: SimProcess, records: Iterable[RecordRead]) -> None:
        for record in records:
            if record.key == HEARTBEAT_KEY and record.topic is Topic.CHANNEL and decode_heartbeat(record.value):
                place = (process.name, record.partition)
                self._heard_ms[place] = max(self._heard_ms.get(place, -1), record.timestamp_ms)

    def writes(self, process: SimProcess, append: Append) -> None:
        """Who was silent says so with a heartbeat, and reads it back, before it writes anything else."""
        starts_cold = append.partition in process.engine.cold_start.running
        if append.topic is not Topic.CHANNEL or append.key == HEARTBEAT_KEY or starts_cold:
            return
        heard_ms = self._heard_ms.get((process.name, append.partition), -1)
        silent_s = (self._cluster.now_ms - heard_ms) / 1000
        if silent_s > process.engine.config.cold_start_after_s + _ROUNDED_S:
            raise Violation(
                "silence", f"{process.name} writes {append.key!r} after {silent_s:.1f} s without a heartbeat"
            )

    def judges_by_another_history(self, process: SimProcess, partition: int) -> bool:
        """Whether a process uses what counted before a cold start, or what its mark is yet to make count; or a bent view."""
        if process is self._cluster.bent:
            return True
        return (process.name, partition) in self._old_history or partition in process.engine.cold_start.running

    def starts_over(self, process: SimProcess, partition: int) -> None:
        """Nobody who has kept up with a log starts over for a marker: what is missing was never there."""
        cluster = self._cluster
        log, replica = cluster.logs[partition], process.engine.replicas[partition]
        offset = replica.position
        if not replica.has_met_gap or offset not in log.markers or offset == 0:
            return
        if replica.current_at_s is not None and process.mono_s - replica.current_at_s >= KEPT_UP_S:
            return
        age_ms = cluster.now_ms - log.entries[offset - 1].timestamp_ms
        if age_ms < log.settings.lag_ms // 2 - _CLOCKS_APART_MS and process.engine.presence.clock_ahead_ms is not None:
            raise Violation(
                "gap", f"{process.name} starts over at {offset}, which is a transaction marker: {replica.why}"
            )

    def read_to_the_end(self, process: SimProcess, partition: int) -> None:
        """A process waits for a record that vouches: a log without gaps leaves nothing to guess."""
        cluster = self._cluster
        log, replica = cluster.logs[partition], process.engine.replicas[partition]
        is_whole = not (log.cleaned or log.markers or log.first_offset or process.has_lost)
        if is_whole and not cluster.options.forgiving:
            raise Violation("lenient", f"{process.name} waits with {log.end} records of a whole log: {replica.why}")
        self._vouched[process.name, partition] = vouched_to(
            log, replica.position, cluster.now_ms, marks=self.marks(partition), slack_ms=_CLOCKS_APART_MS
        )

    def cold_start(self, process: SimProcess, partition: int) -> None:
        """No log is overruled that vouches by itself; of others only what misleads may be taken for the truth."""
        cluster = self._cluster
        cluster.trace.count("cold starts")
        self._presence.starts_cold(process)
        view, truth = process.engine.replicas[partition].view, cluster.truths[partition]
        cluster.note(f"{process.name} takes its view of partition {partition} through {view.applied} for the truth")
        offset = view.applied
        have = {key.key: accepted_of(key) for key in view.existing()}
        want = truth.states[offset] if 0 <= offset < truth.end else {}
        wrong = {key for key in have.keys() | want.keys() if not _is_same(key, have.get(key), want.get(key))}
        vouched = self._vouched.get((process.name, partition), -1)
        is_marked = any(mark > vouched for mark in self.marks(partition))  # a stranger's may have come since
        if vouched >= 0 and not is_marked and not cluster.options.forgiving:
            raise Violation(
                "cold-start",
                f"{process.name} starts cold although the log vouches through {vouched}; changes {sorted(wrong)[:3]}",
            )
        misled = misleading(cluster.logs[partition], truth, offset)
        kept = process.engine.replicas[partition].kept
        if kept is not None:  # what was deleted since, before anybody read it, is lost
            entries = cluster.logs[partition].entries[kept.applied + 1 : offset + 1]
            misled |= {entry.key.split(b"/0x")[0] for entry in entries if entry.key is not None}
        if any(key.split(b"/0x")[0] not in misled for key in wrong):
            raise Violation("cold-start", f"{process.name} differs from the truth at {sorted(wrong)[:3]} for no reason")
        later = cluster.logs[partition].entries[view.applied + 1 :]
        # Debts of before are forgotten as well: the last record of each key counts as the one that settled it.
        self._assumed[process.incarnation, partition] = _Assumed(truth.fork(duplicate(view), later), bool(wrong))

    def _marked(self, record: RecordRead) -> None:
        """A cold start counts from its mark on; a process that judged until then has to start over there."""
        cluster = self._cluster
        mark = decode_mark(record.value)
        if mark is None:
            return
        if self._is_void(mark, record):
            cluster.trace.count("marks that are void")
            return
        self._marks.add((record.partition, record.offset))
        starter = mark.writer
        assumed = self._assumed.pop((starter, record.partition), None)
        if assumed is None:
            return
        if assumed.differs:
            cluster.trace.count("cold starts that changed the truth")
            self.operations.forget_refusals()
        assumed.truth.take_over(cluster.truths[record.partition], record.offset)
        cluster.truths[record.partition] = assumed.truth
        others = (other.name for other in cluster.alive() if other.incarnation != starter)
        self._old_history |= {(name, record.partition): record.offset for name in others}

    def _is_void(self, mark: Mark, record: RecordRead) -> bool:
        """Somebody knew the history between what the mark's writer had read and the mark."""
        partition = record.partition
        return mark.through >= record.offset or any(
            decode_heartbeat(entry.value) is not None
            if entry.key == HEARTBEAT_KEY
            else (partition, entry.offset) in self._marks
            for entry in self._cluster.logs[partition].entries[max(0, mark.through + 1) : record.offset]
        )

    def cold_start_abandoned(self, process: SimProcess, partition: int) -> None:
        self._cluster.trace.count("cold starts abandoned")
        self._assumed.pop((process.incarnation, partition), None)


def _is_same(key: bytes, have: TrueState | None, want: TrueState | None) -> bool:
    """Whether a cold start takes a key as it was: versions are raised, and a namespace that never was counts as deleted."""
    if have is None or want is None:
        is_deleted = b"/0x" not in key and have is not None and have.state is State.DELETED
        return have is want or (want is None and is_deleted)
    raised = want._replace(version=max(have.version, want.version))
    return have == raised
