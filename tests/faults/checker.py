"""What must hold after a run, rule by rule, from what clients and brokers told and from the log. Pure.

Each rule takes the evidence and returns sentences, one for each violation.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from statechannel.audit.gaps import GapCause, GapEnd
from statechannel.engine.kafka_limits import RefusalReason
from statechannel.protocol.bundle import partition_of
from statechannel.protocol.log import RecordRead
from statechannel.protocol.states import State
from statechannel.protocol.verdict import Verdict
from tests.faults.history import Asked, FaultSpan, History
from tests.faults.judged import Grant, Judged
from tests.faults.registers import Call, CallKind, Misplaced, Noted, misplaced, not_kept, wrongly_fenced
from tests.faults.service import overlaps
from tests.support.data_plane import place_of_bundle, place_of_topic
from tests.unit.core.against_twin import difference

SECOND_NS = 1_000_000_000
LATE_S = 0.02
"""Two clocks of one machine, read one after the other, and log times in whole milliseconds."""
MAY_END_WITH = {0, -9, 10, 15, 16, 19}
"""A broker may end: in order, killed, since Kafka was away at its start or end, refused, replaced, or late with hand-overs."""

TOPIC_BROKEN = 17

YOUNG = "young"
"""Stands beside what was done to a process that had not said a word yet."""


@dataclass(slots=True)
class Evidence:
    """Everything that the rules look at.

    Attributes:
        wall_ns: Wall clock minus monotonic clock.
        lag_ms: Age before which the cleaner takes nothing; None: it takes nothing at all.
        copy: Records that were read while the run went on; `final` those that were there in the end, at `final_ms`.
        kept_from: The cleaner was let at everything below this offset.
        deleted_below: By partition, what a fault deleted; it must be known to brokers all the same.
        uncommitted: Values of records of transactions that were not committed: the cleaner removes the newest of a key, too.
        branches: The log as it was before each truncation that was read, judged: what was accepted then was acted on.
        unpaid: Keys in debt each time that all brokers were killed in debt.
        digests: Who says which, of those that must be one.
        ends: Process name, exit code, and what was done to it.
        complaints: Lines of logs that tell of a bug.
        journal: What arrived at the storage, in its order.
        seen_ns: When the driver read each record, by partition and offset. Consumers cannot read a record before the high
            watermark has passed it, and the high watermark stands still while in-sync replicas are missing.
    """

    history: History
    judged: Judged
    copy: Sequence[RecordRead]
    final: Sequence[RecordRead]
    digests: dict[str, str | None]
    ends: list[tuple[str, int, frozenset[str]]]
    complaints: list[str]
    wall_ns: int
    lease_s: float | None
    after_s: float
    expiry_s: float
    final_ms: int
    lag_ms: int | None = None
    kept_from: int = 0
    deleted_below: Mapping[int, int] = field(default_factory=dict)
    uncommitted: Collection[bytes] = ()
    branches: Sequence[Judged] = ()
    unpaid: list[int] = field(default_factory=list)
    journal: Sequence[Noted] = ()
    seen_ns: Mapping[tuple[int, int], int] = field(default_factory=dict)

    def grants_of(self, bundle: str, generation: int) -> list[Grant]:
        """The records by which a process may serve this generation: none, or one on each branch of the log."""
        grants = (judged.grants.get((bundle, generation)) for judged in (self.judged, *self.branches))
        return [grant for grant in grants if grant is not None]

    def mono_ns(self, at_ms: int) -> int:
        """A log time by the clock of the processes."""
        return at_ms * 1_000_000 - self.wall_ns


Rule = Callable[[Evidence], Iterator[str]]
RULES: dict[str, Rule] = {}


def rule(name: str) -> Callable[[Rule], Rule]:
    def add(checked: Rule) -> Rule:
        RULES[name] = checked
        return checked

    return add


def check(evidence: Evidence) -> dict[str, list[str]]:
    """Violations by rule; rules without any are left out."""
    violations = {name: list(checked(evidence)) for name, checked in RULES.items()}
    return {name: problems for name, problems in violations.items() if problems}


@rule("one-server-a-generation")
def one_server_a_generation(evidence: Evidence) -> Iterator[str]:
    """No two processes serve a bundle at one generation, whatever the options."""
    by: dict[tuple[str, int], set[tuple[str, int]]] = defaultdict(set)
    for service in evidence.history.serving:
        if service.event == "serve":
            by[service.bundle, service.generation].add((service.broker, service.pid))
    for write in evidence.history.writes:
        by[write.bundle, write.generation].add((write.broker, write.pid))
    for (bundle, generation), servers in by.items():
        if len(servers) > 1:
            yield f"{bundle} at generation {generation} was served by {sorted(servers)}"


@rule("generations-outlive-truncation")
def generations_outlive_truncation(evidence: Evidence) -> Iterator[str]:
    """What was served by a record that was truncated is served again at a higher generation only."""
    served = {(service.bundle, service.generation) for service in evidence.history.serving if service.event == "serve"}
    for branch in evidence.branches:
        for place in sorted(served & branch.grants.keys()):
            lost = branch.grants[place]
            if evidence.judged.grants.get(place) == lost:
                continue
            for grant in evidence.judged.grants.values():
                if grant.bundle == lost.bundle and grant.at_ms > lost.at_ms and grant.generation <= lost.generation:
                    yield f"{grant} comes after {lost}, which was served and then truncated"


@rule("served-by-its-record")
def served_by_its_record(evidence: Evidence) -> Iterator[str]:
    """Whoever serves does so by an accepted record of that very process, and not before it was in the log."""
    for service in evidence.history.serving:
        if service.event != "serve":
            continue
        grants = evidence.grants_of(service.bundle, service.generation)
        grant = next((grant for grant in grants if grant.incarnation == service.incarnation), next(iter(grants), None))
        if grant is None:
            yield f"{service.broker} (pid {service.pid}) served {service.bundle} at {service.generation}, which nobody was given"
        elif service.incarnation is not None and service.incarnation != grant.incarnation:
            yield f"{service.broker} ({service.incarnation}) served {service.bundle} at {service.generation} by record {grant}"
        elif service.at_ns < evidence.mono_ns(grant.at_ms) - LATE_S * SECOND_NS:
            yield f"{service.broker} served {service.bundle} at {service.generation} before its record {grant.offset} was written"


def _generations(evidence: Evidence) -> Iterator[tuple[str, list[tuple[int, int, str, int, str]]]]:
    """By topic: when a generation was proved to be served, that generation, by whom; in the order of time."""
    places = {service.bundle: place_of_bundle(service.bundle) for service in evidence.history.serving}
    by_topic: dict[str, list[tuple[int, int, str, int, str]]] = defaultdict(list)
    for write in evidence.history.writes:
        by_topic[write.topic].append((write.at_ns, write.generation, write.broker, write.pid, "took a write"))
    for topic, proofs in by_topic.items():
        where = place_of_topic(topic)
        for service in evidence.history.serving:
            if service.event == "serve" and places[service.bundle].holds(*where):
                proofs.append((service.at_ns, service.generation, service.broker, service.pid, "was told to serve"))
        yield topic, sorted(proofs)


def stale_writes(evidence: Evidence) -> Iterator[tuple[str, int, str, str]]:
    """Topic, time, broker and a sentence for each write taken at a generation after a newer one was served by another."""
    for topic, proofs in _generations(evidence):
        newest: tuple[int, int, str, int, str] | None = None
        for proof in proofs:
            if newest is not None and proof[1] < newest[1] and proof[3] != newest[3] and proof[4] == "took a write":
                late_ms = (proof[0] - newest[0]) / 1e6
                yield (
                    topic,
                    proof[0],
                    proof[2],
                    f"{topic}: {proof[2]} (pid {proof[3]}) took a write at generation {proof[1]}, {late_ms:.1f} ms after "
                    f"{newest[2]} (pid {newest[3]}) {newest[4]} at {newest[1]}",
                )
            if newest is None or proof[1] > newest[1]:
                newest = proof


@rule("lease-no-overlap")
def lease_no_overlap(evidence: Evidence) -> Iterator[str]:
    """With the lease option intervals of service never overlap: by each process's own record, and by what clients were told."""
    if evidence.lease_s is None:
        return
    yield from (sentence for _, _, _, sentence in stale_writes(evidence))
    for first, other in overlaps(evidence.history.services):
        both_ms = (min(first.end_ns, other.end_ns) - other.begin_ns) / 1e6
        yield (
            f"{first.broker} (pid {first.pid}) served {first.bundle} at {first.generation} and {other.broker} (pid {other.pid}) "
            f"{other.bundle} at {other.generation}, both for {both_ms:.1f} ms"
        )


@rule("storage-is-fenced")
def storage_is_fenced(evidence: Evidence) -> Iterator[str]:
    """The storage took no generation after a higher one of the same place, and refused none without that."""
    yield from wrongly_fenced(evidence.journal)


@rule("writes-are-kept-once")
def writes_are_kept_once(evidence: Evidence) -> Iterator[str]:
    """An acknowledged write is in the storage once, a refused one is not, and each was made by one who knew the one before."""
    yield from not_kept(evidence.history.calls, evidence.journal)


@rule("registers-are-linearizable")
def registers_are_linearizable(evidence: Evidence) -> Iterator[str]:
    """Each topic's writes and reads have an order that fits all clients' clocks; reads from memory with the lease option only."""
    trusted = _trusted(evidence)
    violations = misplaced(evidence.history.calls, evidence.journal, trusted)
    yield from (violation.what for violation in violations if trusted(violation.call))


@rule("old-reads-have-a-fault")
def old_reads_have_a_fault(evidence: Evidence) -> Iterator[str]:
    """Without the lease option an owner that answers an old value from memory is one that a fault had hit."""
    for call, what in old_reads(evidence):
        if not _touched(evidence, call.broker, call.checked_ns, call.checked_ns, evidence.expiry_s):
            yield f"{what}, and nothing had been done to it"


def old_reads(evidence: Evidence) -> Iterator[Misplaced]:
    """Old values that owners answered from memory without asking the storage, where they may: without the lease option."""
    trusted = _trusted(evidence)
    return (
        violation
        for violation in misplaced(evidence.history.calls, evidence.journal, trusted)
        if not trusted(violation.call)
    )


def _trusted(evidence: Evidence) -> Callable[[Call], bool]:
    return lambda call: evidence.lease_s is not None or call.kind is not CallKind.READ


@rule("overlap-has-a-fault")
def overlap_has_a_fault(evidence: Evidence) -> Iterator[str]:
    """Without it a stale owner is one that a fault had hit; its storage is fenced by generation."""
    if evidence.lease_s is not None:
        return
    for _, at_ns, broker, sentence in stale_writes(evidence):
        if not _touched(evidence, broker, at_ns, at_ns, evidence.expiry_s):
            yield f"{sentence}, and nothing had been done to it"


def _touched(evidence: Evidence, broker: str | None, from_ns: int, to_ns: int, slack_s: float) -> bool:
    """Whether a fault that touches this broker (None: any) was on within the time, or a moment before it."""
    return any(
        (broker is None or broker in span.touched or "*" in span.touched)
        and span.start_ns <= to_ns
        and _over_ns(span) + slack_s * SECOND_NS >= from_ns
        for span in evidence.history.faults
    )


def _over_ns(span: FaultSpan) -> int:
    known = [at for at in (span.healed_ns, span.calm_ns) if at is not None]
    return max(known, default=2**63)


@rule("answers-are-true")
def answers_are_true(evidence: Evidence) -> Iterator[str]:
    """A lookup names an owner that the log had given the bundle to, at that generation."""
    for lookup in evidence.history.lookups:
        grants = evidence.grants_of(lookup.bundle, lookup.generation)
        asserts = (
            judged.asserted.get((lookup.bundle, lookup.generation)) for judged in (evidence.judged, *evidence.branches)
        )
        grants += [asserted for asserted in asserts if asserted is not None]
        grant = next((grant for grant in grants if grant.broker == lookup.owner), next(iter(grants), None))
        if grant is None or grant.broker != lookup.owner:
            yield f"{lookup.via} named {lookup.owner} for {lookup.bundle} at {lookup.generation}; the log says {grant}"
        elif lookup.got_ns < evidence.mono_ns(grant.at_ms) - LATE_S * SECOND_NS:
            yield f"{lookup.via} named {lookup.owner} for {lookup.bundle} at {lookup.generation} before that was written"


def staleness_s(evidence: Evidence) -> Iterator[tuple[float, str]]:
    """By how much lookups that did not say so were behind the log when they were asked, and by whom."""
    for lookup in evidence.history.lookups:
        over = evidence.judged.ended.get((lookup.bundle, lookup.generation))
        if over is not None and lookup.stale_age_s is None:
            offset, at_ms = over
            place = partition_of(lookup.bundle.rpartition("/")[0], evidence.judged.partitions), offset
            over_ns = max(evidence.mono_ns(at_ms), evidence.seen_ns.get(place, 0))
            late_s = (lookup.sent_ns - over_ns) / SECOND_NS
            if late_s > 0:
                yield late_s, f"{lookup.via} named {lookup.owner} for {lookup.bundle} at {lookup.generation}"


@rule("stale-answers-say-so")
def stale_answers_say_so(evidence: Evidence) -> Iterator[str]:
    """An owner that was over for longer than safe mode's patience is named with the age of the view, or not at all."""
    for late_s, what in staleness_s(evidence):
        if late_s > evidence.after_s + 1.0:
            yield f"{what}, {late_s:.2f} s after that was over, and did not say that its view was old"


@rule("acknowledged-is-in-the-log")
def acknowledged_is_in_the_log(evidence: Evidence) -> Iterator[str]:
    """What was answered as accepted is in the log with its effect; what was refused has none."""
    for request in evidence.history.asked:
        yield from min((list(_about(judged, request)) for judged in (evidence.judged, *evidence.branches)), key=len)


_EFFECTS = {
    "transfer": (State.ASSIGNED, "destination"),
    "unload": (State.UNASSIGNED, None),
    "split": (State.DELETED, None),
    "create": (State.ACTIVE, None),
    "delete": (State.DELETED, None),
}


def _about(judged: Judged, request: Asked) -> Iterator[str]:
    records = judged.operations.get(request.operation or "", [])
    what = f"{request.kind} {request.args} ({request.operation})"
    namespace = (
        request.args["namespace"] if "namespace" in request.args else str(request.args["name"]).rpartition("/")[0]
    )
    partition = partition_of(namespace, judged.partitions)
    for facts in (request.started, request.facts if request.answer == "started" else None):
        offset = None if facts is None else facts.get("offset")
        if offset is not None and (
            judged.verdicts.get((partition, offset)) is not Verdict.ACCEPTED
            or judged.by_offset.get((partition, offset)) != request.operation
        ):
            logged = judged.verdicts.get((partition, offset))
            yield f"{what} was begun at offset {offset} of partition {partition}, where the log has {logged}"
    if request.answer == "done":
        state, named = _EFFECTS[request.kind]
        to = request.args.get(named) if named else None
        if not any(record.state is state and (to is None or record.to == to) for record in records):
            yield f"{what} was answered as done; its accepted records are {records}"
    if request.answer in ("rejected", "not-found") and request.started is None and records:
        reason = request.facts.get("reason")
        # An operation that was begun may be refused in the end: its reason is then how it ended.
        never = {"not-written", "not-owned", "unknown-destination", *RefusalReason}
        if reason in {verdict.value for verdict in Verdict} | never:
            yield f"{what} was refused ({reason}); its accepted records are {records}"


@rule("the-log-keeps-what-it-showed")
def the_log_keeps_what_it_showed(evidence: Evidence) -> Iterator[str]:
    """Every record that was ever read is there in the end, unchanged; but for those that the cleaner may take."""
    there = {(record.partition, record.offset): record for record in evidence.final}
    newest = {(record.partition, record.key): record.offset for record in evidence.final}
    for record in evidence.copy:
        final = there.get((record.partition, record.offset))
        if final is not None and (final.key, final.value) == (record.key, record.value):
            continue
        if final is None and record.offset < evidence.deleted_below.get(record.partition, 0):
            continue
        old = evidence.lag_ms is not None and evidence.final_ms - record.timestamp_ms >= evidence.lag_ms
        needless = (
            newest.get((record.partition, record.key), -1) > record.offset or record.value in evidence.uncommitted
        )
        if final is None and (old or record.offset < evidence.kept_from) and needless:
            continue
        place = f"offset {record.offset} of partition {record.partition}"
        yield f"{place} was {record.key!r}, in the end it is {final and final.key!r}"
        return


@rule("every-gap-has-a-cause")
def every_gap_has_a_cause(evidence: Evidence) -> Iterator[str]:
    """The audit's gaps say why; none is open; what clients missed lies in a gap or a fault."""
    for gap in evidence.judged.gaps:
        if gap.cause in (GapCause.REPAIR, GapCause.BEFORE_LOG):
            yield f"{gap.bundle} at offset {gap.start_offset}: {gap.cause} {gap.why}"
        if gap.end is GapEnd.OPEN:
            yield f"{gap.bundle} is without an owner since offset {gap.start_offset}: {gap.why}"
    for outage in evidence.history.outages:
        end_ns = outage.end_ns if outage.end_ns is not None else 2**62
        where = place_of_topic(outage.topic)
        named = any(
            place_of_bundle(gap.bundle).holds(*where)
            and evidence.mono_ns(gap.start_ms) <= end_ns
            and (gap.end_ms is None or evidence.mono_ns(gap.end_ms) + SECOND_NS >= outage.start_ns)
            for gap in evidence.judged.gaps
        )
        if not named and not _touched(evidence, None, outage.start_ns, end_ns, evidence.expiry_s):
            yield f"writes of {outage.topic} failed for {(end_ns - outage.start_ns) / 1e9:.1f} s, and nothing says why"


@rule("one-digest")
def one_digest(evidence: Evidence) -> Iterator[str]:
    """All replicas, and every way to read the log, hold the same accepted states."""
    if len(set(evidence.digests.values())) != 1 or None in evidence.digests.values():
        yield f"digests differ: {evidence.digests}"


@rule("both-implementations-agree")
def both_implementations_agree(evidence: Evidence) -> Iterator[str]:
    """Of each record the second implementation (`tests/twin`) says the same, and of the states and debts in the end."""
    partitions = evidence.judged.partitions
    for number in range(partitions):
        differs = difference((record for record in evidence.copy if record.partition == number), number, partitions)
        if differs:
            yield f"partition {number}: {differs}"


@rule("outages-change-nothing")
def outages_change_nothing(evidence: Evidence) -> Iterator[str]:
    """Brokers that were all killed, with debts unpaid, come back to what the whole log says."""
    for number, names in enumerate(evidence.history.changed):
        if names:
            yield f"outage {number}: {len(names)} bundles are not what the log says: {names[:4]}"
        if not evidence.unpaid[number]:
            yield f"outage {number}: all debts were paid before it, so that it shows nothing"


@rule("nothing-is-left-over")
def nothing_is_left_over(evidence: Evidence) -> Iterator[str]:
    """The log judges to its end, everything in it is understood, and no key is in debt."""
    answer: dict[str, Any] = evidence.judged.answer
    if answer.get("stopped"):
        yield f"judging stopped: {answer['stopped']}"
    if answer["debts"]:
        yield f"debts: {answer['debts']}"
    for reason in ("undecodable", "wrong-partition", "bad-children", "illegal-move", "unsupported-format"):
        if answer["rejected"].get(reason):
            yield f"{answer['rejected'][reason]} records of honest brokers are {reason}"


@rule("recovered-in-time")
def recovered_in_time(evidence: Evidence) -> Iterator[str]:
    """After each calm round the cluster is healthy within the bound of its settings, and everything served 10 s later."""
    for recovery in evidence.history.recoveries:
        yield from (f"after {', '.join(recovery.faults)}: {problem}" for problem in recovery.problems)


@rule("served-beside-the-sick")
def served_beside_the_sick(evidence: Evidence) -> Iterator[str]:
    """While one member has lost a connection for good, the others lead, repair and serve within the bound of the settings."""
    for probe in evidence.history.beside:
        yield from (f"beside {probe.fault}: {problem}" for problem in probe.problems)


@rule("ends-are-explained")
def ends_are_explained(evidence: Evidence) -> Iterator[str]:
    """A process ends by what was done to it, or with an exit code that says why it had to."""
    for name, code, done in evidence.ends:
        if code == -15 and {"stop", YOUNG} <= done:
            continue  # told to end while Python was still starting: nobody had taken over the signal yet
        if code not in MAY_END_WITH | ({TOPIC_BROKEN} if evidence.branches else set()) or (
            code == -9 and "kill" not in done
        ):
            yield f"{name} ended with {code} ({sorted(done) or 'nothing was done to it'})"
    yield from evidence.complaints


@dataclass(slots=True)
class Verdicts:
    """Violations of a run, and figures that go into the report."""

    violations: dict[str, list[str]] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
