"""History of a bundle from the channel's records: its own changes, and those of the bundles that it was part of.

A fold over what an audit observes (`RecordRead`, `Judgement`), like `statechannel.audit.history`; here the records of one
operation on one bundle become one change. Times are the log's own. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from statechannel.audit.ownership import lost_of
from statechannel.protocol.bundle import FULL_UPPER, KeyParts, is_bundle, parse_key, split_typed_topic, topic_hash
from statechannel.protocol.states import BETWEEN_OWNERS, Action, State
from statechannel.protocol.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from statechannel.protocol.keys import KeyState
    from statechannel.protocol.log import RecordRead
    from statechannel.protocol.record import Record
    from statechannel.protocol.view import Judgement


class What(StrEnum):
    """The result of a change: stable words."""

    CREATED = "created"  # with its namespace, or by it
    ASSIGNED = "assigned"  # it had no owner before
    MOVED = "moved"
    UNLOADED = "unloaded"
    TAKEN_BACK = "taken-back"  # the move failed, the former owner kept it
    RESUMED = "resumed"  # the same owner, started again
    DECLINED = "declined"
    SUPERSEDED = "superseded"  # another operation took over
    SPLIT = "split"
    DELETED = "deleted"
    UNDER_WAY = "under-way"


@dataclass(frozen=True, slots=True)
class BundleChange:
    """All records of one operation on one bundle.

    Attributes:
        source: Its owner before; None: it had none, or it is unknown.
        destination: Its owner afterwards.
        wanted: Where it was to go, if it did not get there.
        lost: The owner that was lost, where a repair says so.
        forced: A repair.
        by: Broker that wrote the first record.
        reason: What the first record gives as its reason; for people.
        failure: Why it did not end as asked, such as the error of a hook, by the record that ended it; for people.
        children: Keys of the parts, of a split.
        ended_ms: Log time of its last record; equals `began_ms` where there is one only.
    """

    bundle: str
    what: What
    operation: str | None
    flow: str | None
    began_ms: int
    ended_ms: int
    offset: int
    partition: int
    by: str
    source: str | None = None
    destination: str | None = None
    wanted: str | None = None
    lost: str | None = None
    forced: bool = False
    reason: str | None = None
    failure: str | None = None
    children: Sequence[str] = field(default=())


class Trail:
    """The changes of one bundle, or of the bundles that held a topic.

    Attributes:
        title: What it is the trail of, for people.
        changes: In log order: those of the bundles that held it, its own and, if it was split, those of its parts.
        bundle: The live bundle that holds it now, according to these records; None if they do not say, or if it was split
            into parts of which none holds it alone.
        owner: Who serves that bundle.

    Raises:
        ValueError: The name is neither a bundle nor a topic.
    """

    def __init__(self, name: str) -> None:
        self._wanted, self.title = _meant(name)
        self.changes: list[BundleChange] = []
        self.bundle: str | None = None
        self.owner: str | None = None
        self._open: dict[str, int] = {}
        self._owners: dict[str, str | None] = {}

    @property
    def names(self) -> Sequence[str]:
        """Keys of every bundle that the changes are about, and of their parts that hold what is asked for."""
        parts = (child for change in self.changes for child in change.children if self._concerns(child))
        now = [] if self.bundle is None else [self.bundle]
        return list(
            dict.fromkeys([*(change.bundle for change in self.changes if is_bundle(change.bundle)), *parts, *now])
        )

    @property
    def there_since_ms(self) -> int | None:
        """When its owner got it, or what it was part of; None where the records that are left do not say."""
        for change in reversed(self.changes):
            if change.what in (What.ASSIGNED, What.MOVED):
                return change.ended_ms if change.destination == self.owner else None
        return None

    def settled(self, bundle: str, owner: str | None) -> None:
        """Set the accepted state where it is known from elsewhere: the records of a compacted log may not have it."""
        self.bundle, self.owner = bundle, owner

    def observe(self, record: RecordRead, judgement: Judgement) -> None:
        key, change = judgement.key, judgement.record
        if judgement.verdict is not Verdict.ACCEPTED or key is None or change is None:
            return
        if key.namespace != self._wanted.namespace:
            return
        if key.is_namespace:
            self._namespace(record, change, key)
        elif self._overlaps(key.lower, key.upper):
            self._bundle(record, change, key)

    # --- the records ------------------------------------------------------------------------------------------------

    def _namespace(self, record: RecordRead, change: Record, key: KeyState) -> None:
        self._open.clear()
        self._owners.clear()
        self.bundle = self.owner = None
        what = What.CREATED if change.state is State.ACTIVE else What.DELETED
        children = [f"{key.namespace}/{child}" for child in key.children or ()]
        self.changes.append(self._new(record, change, key, what, children=children))
        for child in children:
            self._now_at(child, None)

    def _bundle(self, record: RecordRead, change: Record, key: KeyState) -> None:
        name = key.name
        place = self._open.get(name)
        if place is None or not self._goes_on(place, key):
            source = self._owners.get(name, change.from_)
            place = self._open[name] = len(self.changes)
            self.changes.append(self._new(record, change, key, What.UNDER_WAY, source=source))
            fresh = True
        else:
            fresh = False
        updated = self.changes[place] = self._went_on(self.changes[place], record, change, key, fresh=fresh)
        if updated.what is What.SPLIT:
            if self.bundle == name:
                self.bundle = self.owner = None
            for child in updated.children:
                self._now_at(child, change.from_)
        else:
            self._now_at(name, key.owner)

    def _goes_on(self, place: int, key: KeyState) -> bool:
        """Whether a record belongs to the open change: by its operation, or because it ends the change without one."""
        before = self.changes[place]
        if before.operation is not None and before.operation == key.operation:
            return True
        if before.what is not What.UNDER_WAY:
            return False
        if key.operation is None or key.forced:
            return True
        self.changes[place] = replace(before, what=What.SUPERSEDED)
        return False

    def _now_at(self, name: str, owner: str | None) -> None:
        self._owners[name] = owner
        if self._concerns(name):
            self.bundle, self.owner = name, owner

    def _went_on(
        self, updated: BundleChange, record: RecordRead, change: Record, key: KeyState, *, fresh: bool
    ) -> BundleChange:
        in_flight = change.state in BETWEEN_OWNERS
        gave_up = change.text("action") in (Action.DECLINE, Action.RESUME)
        updated = replace(
            updated,
            failure=change.text("reason") if gave_up else updated.failure,
            ended_ms=max(updated.began_ms, record.timestamp_ms),
            wanted=(change.to if in_flight else None) or updated.wanted,
            forced=updated.forced or change.forced,
            lost=updated.lost or _lost(change),
        )
        if change.state is State.ASSIGNED:
            same = updated.source == key.owner or (fresh and change.text("action") == Action.RESUME)
            what = (What.RESUMED if fresh else What.TAKEN_BACK) if same else _came(updated)
            return replace(updated, destination=key.owner, what=what)
        if change.state is State.UNASSIGNED:
            declined = change.text("action") == Action.DECLINE
            return replace(updated, destination=None, what=What.DECLINED if declined else What.UNLOADED)
        if change.state is State.DELETED:
            children = [f"{key.namespace}/{child}" for child in key.children or ()]
            return replace(updated, destination=change.from_, what=What.SPLIT, children=children)
        return replace(updated, what=What.UNDER_WAY)

    def _new(self, record: RecordRead, change: Record, key: KeyState, what: What, **more: Any) -> BundleChange:
        return BundleChange(
            bundle=key.name,
            what=what,
            operation=key.operation,
            flow=key.flow,
            began_ms=record.timestamp_ms,
            ended_ms=record.timestamp_ms,
            offset=record.offset,
            partition=record.partition,
            by=change.broker,
            reason=change.text("reason"),
            **more,
        )

    # --- ranges ------------------------------------------------------------------------------------------------------

    def _overlaps(self, lower: int, upper: int) -> bool:
        wanted = self._wanted
        return lower < _end(wanted.upper) and wanted.lower < _end(upper)

    def _concerns(self, name: str) -> bool:
        """Whether a bundle holds the whole range of the trail."""
        parts = parse_key(name.encode())
        if parts is None or parts.namespace != self._wanted.namespace:
            return False
        return parts.lower <= self._wanted.lower and _end(self._wanted.upper) <= _end(parts.upper)


def _came(change: BundleChange) -> What:
    return What.ASSIGNED if change.source is None else What.MOVED


def _lost(change: Record) -> str | None:
    lost = lost_of(change)
    return None if lost is None else lost.broker


def _meant(name: str) -> tuple[KeyParts, str]:
    parts = parse_key(name.encode())
    if parts is not None and not parts.is_namespace:
        return parts, name
    topic = split_typed_topic(name) if parts is None else None
    if topic is None:
        raise ValueError(f"{name!r} is neither a bundle nor a topic")
    namespace, full_name = topic
    place = topic_hash(full_name)
    return KeyParts(namespace, place, place + 1), f"the bundle of {full_name}"


def _end(upper: int) -> int:
    """First hash that is not in the range any more: the last range of the ring is closed."""
    return upper + (upper == FULL_UPPER)


def part_of(child: str, parent: str) -> bool:
    """Whether one bundle is a part of another one, or the same."""
    part, whole = parse_key(child.encode()), parse_key(parent.encode())
    return (
        part is not None
        and whole is not None
        and part.namespace == whole.namespace
        and whole.lower <= part.lower
        and _end(part.upper) <= _end(whole.upper)
    )
