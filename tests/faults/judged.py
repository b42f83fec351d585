"""The log of a run as the audit judges it: what was accepted, and which process was given what."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from statechannel.audit.gaps import Gap, Gaps
from statechannel.protocol.log import RecordRead
from statechannel.protocol.record import Kind
from statechannel.protocol.states import State
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import Judgement
from statechannel.replay import auditor
from tests.faults.history import LeftInDebt

_OWNED = {State.ASSIGNED, State.RELEASING, State.SPLITTING}


class Grant(NamedTuple):
    """An accepted record by which one process serves a bundle."""

    bundle: str
    generation: int
    broker: str
    incarnation: str
    offset: int
    at_ms: int


class Accepted(NamedTuple):
    """An accepted record of an operation."""

    offset: int
    name: str
    state: State
    to: str | None
    broker: str
    forced: bool


@dataclass(slots=True)
class Judged:
    """What the log says.

    Attributes:
        grants: By bundle and generation.
        asserted: Owners that a restated state names, by bundle and generation: no broker serves at it yet.
        ended: Offset and log time at which a generation was over, by bundle and generation.
        operations: Accepted records by operation id.
        verdicts, by_offset: By partition and offset.
    """

    answer: dict[str, Any] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)
    grants: dict[tuple[str, int], Grant] = field(default_factory=dict)
    asserted: dict[tuple[str, int], Grant] = field(default_factory=dict)
    ended: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    operations: dict[str, list[Accepted]] = field(default_factory=dict)
    verdicts: dict[tuple[int, int], Verdict] = field(default_factory=dict)
    by_offset: dict[tuple[int, int], str | None] = field(default_factory=dict)
    partitions: int = 1
    _serving: dict[str, int] = field(default_factory=dict)

    def observe(self, record: RecordRead, judgement: Judgement) -> None:
        """Take in one judged record."""
        where = record.partition, record.offset
        self.verdicts[where] = judgement.verdict
        change, key = judgement.record, judgement.key
        if change is None or key is None:
            return
        operation = change.text("operation")
        self.by_offset[where] = operation
        if change.kind is Kind.ASSERT and change.state in _OWNED:
            owner, generation = (
                (change.to, change.version) if change.state is State.ASSIGNED else (change.from_, change.version - 1)
            )
            grant = Grant(key.name, generation, owner or "", change.incarnation, record.offset, record.timestamp_ms)
            self.asserted.setdefault((key.name, generation), grant)
        if judgement.verdict is not Verdict.ACCEPTED:
            return
        if operation is not None:
            accepted = Accepted(record.offset, key.name, change.state, change.to, change.broker, change.forced)
            self.operations.setdefault(operation, []).append(accepted)
        if key.is_namespace:
            return
        if change.state is State.ASSIGNED:
            self._end(key.name, record)
            self._grant(key.name, change.version, change.broker, change.incarnation, record)
        elif change.state is State.DELETED:
            self._end(key.name, record)
            for child in change.children or ():
                name = f"{key.namespace}/{child}"
                self._grant(name, change.version + 1, change.broker, change.incarnation, record)
        elif change.state is not State.SPLITTING:
            self._end(key.name, record)

    def _grant(self, bundle: str, generation: int, broker: str, incarnation: str, record: RecordRead) -> None:
        grant = Grant(bundle, generation, broker, incarnation, record.offset, record.timestamp_ms)
        self.grants[bundle, generation] = grant
        self._serving[bundle] = generation

    def _end(self, bundle: str, record: RecordRead) -> None:
        generation = self._serving.pop(bundle, None)
        if generation is not None:
            self.ended[bundle, generation] = (record.offset, record.timestamp_ms)


def judge(records: Sequence[RecordRead], partitions: int = 1, read: str = "full") -> Judged:
    """Judge a log up to the last record of each partition."""
    judged, gaps = Judged(partitions=partitions), Gaps()
    by_partition: dict[int, Sequence[RecordRead]] = {
        number: [record for record in records if record.partition == number] for number in range(partitions)
    }

    def observe(record: RecordRead, judgement: Judgement) -> None:
        judged.observe(record, judgement)
        gaps.observe(record, judgement)

    now_ms = max((record.timestamp_ms for record in records), default=0)
    judged.answer = auditor.audit(
        by_partition,
        end_offsets={number: mine[-1].offset + 1 if mine else 0 for number, mine in by_partition.items()},
        read=read,
        now_ms=now_ms,
        compaction_lag_ms=3_600_000,
        observe=observe,
    )
    judged.gaps = gaps.all()
    return judged


def live_bundles(records: Sequence[RecordRead]) -> dict[str, list[Any]]:
    """State, owner and generation of every live bundle of one partition, by a reader of the whole log, as brokers tell them."""
    view = auditor.audit_part(0, 1, records).view
    return {key.name: [str(key.state), key.owner, key.generation] for key in view.live()}


def unpaid(records: Sequence[RecordRead], left: LeftInDebt) -> int:
    """How many keys were in debt when all brokers had been killed; records that came after the kill do not count."""
    before = [record for record in records if record.timestamp_ms <= left.at_ms]
    debts = auditor.audit_part(0, 1, before).view.ledger.open.values()
    return sum(debt.newest_offset in left.offsets for debt in debts)
