"""Records of a bundle, two levels: each record as a line, and the records of one operation on one bundle as one change. Pure.

Folds over judged records (`RecordRead`, `Judgement`). Times are the log's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple

from statechannel.protocol.bundle import (
    FULL_UPPER,
    KeyParts,
    is_bundle,
    parse_key,
    range_name,
    split_typed_topic,
    topic_hash,
)
from statechannel.protocol.keys import KeyState
from statechannel.protocol.log import RecordRead
from statechannel.protocol.record import Record
from statechannel.protocol.states import BETWEEN_OWNERS, Action, State
from statechannel.protocol.verdict import MEANING, REJECTIONS, Verdict
from statechannel.protocol.view import Judgement

# --- ranges ---


def range_of(name: str) -> tuple[KeyParts, str] | None:
    """The range of a namespace or bundle, or of a topic its hash alone, with the topic's whole name; None: it is none of them."""
    parts = parse_key(name.encode())
    if parts is not None:
        return parts, ""
    topic = split_typed_topic(name)
    if topic is None:
        return None
    namespace, full_name = topic
    place = topic_hash(full_name)
    return KeyParts(namespace, place, place + 1), full_name


def meant(name: str) -> tuple[KeyParts, str]:
    """The range of a name, and its title.

    Raises:
        ValueError: The name is neither a namespace, a bundle nor a topic.
    """
    named = range_of(name)
    if named is None:
        raise ValueError(f"{name!r} is neither a bundle nor a namespace nor a topic")
    parts, topic = named
    return parts, f"every bundle that held {topic} (hash 0x{parts.lower:08x})" if topic else name


def overlap(first: KeyParts, other: KeyParts) -> bool:
    """Whether two ranges of a namespace have a hash in common; a namespace has all of them."""
    if first.namespace != other.namespace:
        return False
    return first.is_namespace or other.is_namespace or (first.lower < end_of(other) and other.lower < end_of(first))


def end_of(parts: KeyParts) -> int:
    """First hash after the range: the last range of the ring is closed."""
    return parts.upper + (parts.upper == FULL_UPPER)


def contains(whole: KeyParts, part: KeyParts) -> bool:
    """Whether one bundle has all hashes of another one."""
    return whole.namespace == part.namespace and whole.lower <= part.lower and end_of(part) <= end_of(whole)


def short_range(key: str) -> str:
    """The range of a bundle's key, or the key of a namespace."""
    parts = parse_key(key.encode())
    return key if parts is None or parts.is_namespace else range_name(parts.lower, parts.upper)


# --- records ---


class LostOwner(NamedTuple):
    """The lost owner, as named by a repair, or by the resume of its next process."""

    broker: str
    incarnation: str | None
    last_heard_ms: int


def lost_of(record: Record) -> LostOwner | None:
    """The field `lost`, if it is well-formed; verdicts do not depend on it."""
    lost = record.raw.get("lost")
    if not isinstance(lost, dict):
        return None
    broker, incarnation, heard_ms = lost.get("broker"), lost.get("incarnation"), lost.get("last_heard_ms")
    if not isinstance(broker, str) or type(heard_ms) is not int or heard_ms < 0:
        return None
    return LostOwner(broker, incarnation if isinstance(incarnation, str) else None, heard_ms)


BundleOwner = tuple[KeyState, str | None]
"""A bundle with its owner after a record; None: it has none. A plain tuple: one is made for each accepted record."""


def owners_after(judgement: Judgement) -> Sequence[BundleOwner]:
    """The bundles that an accepted record concerns: its own, changed or not, then the parts of a split; all of a new ring."""
    key = judgement.key
    if judgement.verdict is not Verdict.ACCEPTED or key is None:
        return ()
    if key.is_namespace:
        return [] if key.ring is None else [(bundle, None) for bundle in key.ring.live.values()]
    if key.state is not State.DELETED or key.ring is None:
        return ((key, key.owner),)
    live = key.ring.live
    parts = [live[lower] for lower in (key.bounds or ())[:-1] if lower in live]
    return ((key, None), *((part, key.from_) for part in parts))


def repair_reason(record: Record) -> str:
    """Description of a forced record."""
    lost = lost_of(record)
    what = f"repaired by {record.broker}"
    return what if lost is None else f"{lost.broker} was gone, {what}"


class HistoryLine(NamedTuple):
    """One record of a bundle's history: on its own key, its parents', or its namespace's."""

    partition: int
    offset: int
    timestamp_ms: int
    key: str
    verdict: Verdict
    kind: str
    version: int | None = None
    state: str | None = None
    from_: str | None = None
    to: str | None = None
    by: str | None = None
    action: str | None = None
    operation: str | None = None
    reason: str | None = None
    note: str = ""


def history_line(record: RecordRead, judgement: Judgement) -> HistoryLine:
    decoded = judgement.record
    place = (record.partition, record.offset, record.timestamp_ms, (record.key or b"").decode(errors="replace"))
    note = _note(judgement)
    if decoded is None:
        return HistoryLine(*place, judgement.verdict, "null" if record.value is None else "-", note=note)
    return HistoryLine(
        *place,
        judgement.verdict,
        decoded.kind.value,
        decoded.version,
        decoded.state.value,
        decoded.from_,
        decoded.to,
        decoded.broker,
        decoded.text("action"),
        decoded.text("operation"),
        decoded.text("reason"),
        note,
    )


def _note(judgement: Judgement) -> str:
    decoded, note = judgement.record, judgement.why
    if decoded is not None:
        if judgement.verdict is Verdict.ACCEPTED and decoded.children is not None:
            note = f"{len(decoded.children)} children"
        if decoded.forced:
            note = ", ".join(filter(None, [note, "forced", repair_reason(decoded)]))
    if not note and judgement.verdict in REJECTIONS:
        note = MEANING[judgement.verdict]
    return note


_FIELDS = tuple(name.rstrip("_") for name in HistoryLine._fields)


def history_fields(line: HistoryLine) -> dict[str, Any]:
    return dict(zip(_FIELDS, line, strict=True)) | {"verdict": line.verdict.value}


# --- changes ---


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


class BundleStory:
    """The changes of one bundle, or of the bundles that held a topic.

    Attributes:
        title: What it is the story of, for people.
        changes: In log order: those of the bundles that held it, its own and, if it was split, those of its parts.
        bundle: The live bundle that holds it now, according to these records; None if they do not say, or if it was split
            into parts of which none holds it alone.
        owner: Who serves that bundle.

    Raises:
        ValueError: The name is neither a bundle nor a topic.
    """

    def __init__(self, name: str) -> None:
        named = range_of(name)
        if named is None or named[0].is_namespace:
            raise ValueError(f"{name!r} is neither a bundle nor a topic")
        self._wanted, topic = named
        self.title = f"the bundle of {topic}" if topic else name
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
        elif overlap(self._wanted, KeyParts(key.namespace, key.lower, key.upper)):
            self._bundle(record, judgement, change, key)

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

    def _bundle(self, record: RecordRead, judgement: Judgement, change: Record, key: KeyState) -> None:
        name = key.name
        place = self._open.get(name)
        if place is None or not self._goes_on(place, key):
            source = self._owners.get(name, change.from_)
            place = self._open[name] = len(self.changes)
            self.changes.append(self._new(record, change, key, What.UNDER_WAY, source=source))
            fresh = True
        else:
            fresh = False
        self.changes[place] = self._went_on(self.changes[place], record, change, key, fresh=fresh)
        if self.bundle == name:
            self.bundle = self.owner = None
        for bundle, owner in owners_after(judgement):
            if bundle.state is not State.DELETED:
                self._now_at(bundle.name, owner)

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
        lost = lost_of(change)
        updated = replace(
            updated,
            failure=change.text("reason") if gave_up else updated.failure,
            ended_ms=max(updated.began_ms, record.timestamp_ms),
            wanted=(change.to if in_flight else None) or updated.wanted,
            forced=updated.forced or change.forced,
            lost=updated.lost or (None if lost is None else lost.broker),
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

    def _concerns(self, name: str) -> bool:
        parts = parse_key(name.encode())
        return parts is not None and contains(parts, self._wanted)


def _came(change: BundleChange) -> What:
    return What.ASSIGNED if change.source is None else What.MOVED
