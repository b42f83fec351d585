"""History of a bundle: all its records, as lines. Pure functions over an audit's observations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from statechannel.audit.errors import AuditQuestionError
from statechannel.audit.moments import WHOLE_LOG, LogWindow
from statechannel.audit.rejections import winner_fields
from statechannel.audit.spool import Spool
from statechannel.protocol.bounded import remember
from statechannel.protocol.bundle import KeyParts, parse_key, range_name
from statechannel.protocol.codec import HEARTBEAT_KEY
from statechannel.protocol.keys import KeyState
from statechannel.protocol.log import RecordRead
from statechannel.protocol.overruling import MarkedColdStart
from statechannel.protocol.record import Record
from statechannel.protocol.side_record import json_object
from statechannel.protocol.states import State
from statechannel.protocol.verdict import REJECTIONS, Verdict
from statechannel.protocol.view import Judgement, View
from statechannel.replay.part import JoinObserver
from statechannel.stories.bundle import (
    HistoryLine,
    contains,
    history_fields,
    history_line,
    lost_of,
    meant,
    overlap,
    owners_after,
)


def subject_of(name: str, option: str = "") -> tuple[KeyParts, str]:
    """The range of a bundle, namespace or topic that is asked about, and its title.

    Args:
        option: Option that held the name.

    Raises:
        AuditQuestionError: The name is none of these.
    """
    try:
        return meant(name)
    except ValueError as error:
        raise AuditQuestionError(
            f"{option}{error}.", hint="Use tenant/namespace/0x..._0x..., tenant/namespace/topic, or tenant/namespace."
        ) from None


class History(JoinObserver):
    """Collects the records of one bundle: on its own key, on ranges that contain it or are part of it, on its namespace.

    For a topic, those of every bundle that ever held the topic's hash; for a namespace, those of all its bundles; without
    a name, all records but heartbeats. All verdicts, including duplicates and junk.

    Args:
        name: Bundle, topic or namespace; None: all.
        window: Later and earlier records are only read for what they changed.
        by: Only records of this broker; undecodable ones name none.

    Attributes:
        title: Subject of the history.
        rows: For the JSON output, in log order; without a name in the order of log time, as partitions are read one after the
            other.

    Raises:
        ValueError: The name is not a bundle, topic or namespace.
    """

    def __init__(self, name: str | None, *, window: LogWindow = WHOLE_LOG, by: str | None = None) -> None:
        self._parts: KeyParts | None = None
        self.title = "all namespaces"
        if name is not None:
            self._parts, self.title = meant(name)
        self._is_topic = self.title != name
        self._window, self._by = window, by
        self.rows = Spool(None if name is not None else history_order)
        self._changes = ChangeHistory(self._concerns)

    @property
    def namespace(self) -> str | None:
        return None if self._parts is None else self._parts.namespace

    def is_named(self, records: Iterable[RecordRead]) -> bool:
        """Whether any of these records concerns the subject: a bundle by its own key or among the children of another."""
        wanted = self._parts
        if wanted is None:
            return True
        prefix = wanted.namespace.encode()
        child = b"" if wanted.is_namespace or self._is_topic else range_name(wanted.lower, wanted.upper).encode()
        for record in records:
            if record.key is None or not record.key.startswith(prefix):
                continue
            parts = parse_key(record.key)
            if parts is not None and parts.namespace == wanted.namespace:
                if parts == wanted or child in (record.value or b""):  # an empty name is in every value
                    return True
        return False

    def joined(self, view: View, *, sure: bool) -> None:
        """Continue the history from a joining reader's view."""
        if not sure:
            return
        self._changes.begin(view)

    def overruled(self, cold_start: MarkedColdStart, view: View) -> None:
        """Continue from the states that a cold start has put in place of accepted ones."""
        self._changes.overruled(cold_start, view)

    def observe(self, record: RecordRead, judgement: Judgement) -> None:
        parts = None if record.key is None else parse_key(record.key)
        if parts is None:
            self._without_bundle(record, judgement)
            return
        if self._concerns(parts):
            changes = self._changes.describe(record, judgement)
            self._list(history_line(record, judgement), {"relation": self._relation(parts)} | changes)

    def _without_bundle(self, record: RecordRead, judgement: Judgement) -> None:
        """A record whose key is of no bundle or namespace: a mark, or junk. Heartbeats are left out: one a second."""
        if self._parts is not None or record.key == HEARTBEAT_KEY:
            return
        line = history_line(record, judgement)
        if judgement.verdict is Verdict.CONTROL:
            by, incarnation = control_writer(record.value)
            line = line._replace(kind="mark", by=by, note=judgement.why)
            self._list(line, {"relation": "none"} | NO_CHANGE | {"incarnation": incarnation})
        else:
            self._list(line, {"relation": "none"} | self._changes.describe(record, judgement))

    def _list(self, line: HistoryLine, more: dict[str, Any]) -> None:
        if (self._by is None or line.by == self._by) and self._window.has(line.offset, line.timestamp_ms):
            self.rows.append(history_fields(line) | more)

    def _concerns(self, parts: KeyParts) -> bool:
        return self._parts is None or overlap(self._parts, parts)

    def _relation(self, parts: KeyParts) -> str:
        wanted = self._parts
        if parts.is_namespace:
            return "namespace"
        if wanted is None or wanted.is_namespace or self._is_topic:
            return "bundle"
        if parts == wanted:
            return "own"
        if contains(parts, wanted):
            return "ancestor"
        return "descendant" if contains(wanted, parts) else "overlapping"


def history_order(row: Mapping[str, Any]) -> tuple[int, int, int]:
    """Sort key of records of several partitions: by log time."""
    return row["timestamp_ms"], row["partition"], row["offset"]


def control_writer(value: bytes | None) -> tuple[str | None, str | None]:
    """Broker and incarnation that a mark names, each None if it does not."""
    by = (json_object(value) or {}).get("by")
    broker, incarnation = (by.get("broker"), by.get("incarnation")) if isinstance(by, dict) else (None, None)
    return broker if isinstance(broker, str) else None, incarnation if isinstance(incarnation, str) else None


_CHILDREN_MAX = 64
_OPERATIONS_MAX = 10_000
NO_CHANGE: dict[str, Any] = dict.fromkeys(
    ("incarnation", "flow", "decision", "lost", "began", "before", "after", "children", "winner")
)
"""Fields of a record that changed no bundle."""


class KnownState(NamedTuple):
    state: State
    owner: str | None
    generation: int | None
    to: str | None
    version: int


def parts_of(key: KeyState) -> KeyParts:
    return KeyParts(key.namespace, key.lower, key.upper)


def known_state_of(key: KeyState) -> KnownState | None:
    """The state that a reader holds of a key; None if it does not exist."""
    return None if key.state is None else KnownState(key.state, key.owner, key.generation, key.to, key.version)


class ChangeHistory:
    """Remembers the states of a history's keys, and the first record of each operation.

    Args:
        concerns: Whether a key belongs to the history; others are not remembered.
    """

    def __init__(self, concerns: Callable[[KeyParts], bool]) -> None:
        self._concerns = concerns
        self._known: dict[str, KnownState] = {}
        self._began: dict[str | None, dict[str, Any]] = {}

    def begin(self, view: View) -> None:
        """Start from a joining reader's view."""
        for key in view.existing():
            if self._concerns(parts_of(key)):
                self._note(key.name, known_state_of(key))

    def overruled(self, cold_start: MarkedColdStart, view: View) -> None:
        """Note the states behind a cold start."""
        for overruled in cold_start.overruled or ():
            parts, key = parse_key(overruled.key.encode()), view.get(overruled.key)
            if parts is not None and self._concerns(parts):
                self._note(overruled.key, None if key is None else known_state_of(key))

    def describe(self, record: RecordRead, judgement: Judgement) -> dict[str, Any]:
        """What a record changed."""
        decoded, key = judgement.record, judgement.key
        fields = dict(NO_CHANGE)
        if judgement.verdict in REJECTIONS:
            fields["winner"] = winner_fields(judgement)
        if decoded is not None:
            lost = lost_of(decoded)
            fields |= {
                "incarnation": decoded.incarnation,
                "flow": decoded.text("flow"),
                "decision": decoded.text("decision"),
                "lost": None if lost is None else lost._asdict(),
                "began": self._began.get(decoded.text("operation")),
            }
        if judgement.verdict is Verdict.ACCEPTED and key is not None and decoded is not None:
            fields |= self._accepted(record, judgement, decoded, key)
        return fields

    def _accepted(self, record: RecordRead, judgement: Judgement, decoded: Record, key: KeyState) -> dict[str, Any]:
        before, after = self._known.get(key.name), known_state_of(key)
        self._note(key.name, after)
        fields: dict[str, Any] = {
            "before": None if before is None else before._asdict(),
            "after": None if after is None else after._asdict(),
        }
        children = self._children(judgement)
        if decoded.children is not None:
            fields["children"] = {"count": len(decoded.children), "of_this": children[:_CHILDREN_MAX]}
        operation = decoded.text("operation")
        if operation is not None and operation not in self._began:
            began = {
                "offset": record.offset,
                "by": decoded.broker,
                "action": decoded.text("action"),
                "reason": decoded.text("reason"),
            }
            remember(self._began, operation, began, _OPERATIONS_MAX)
        return fields

    def _children(self, judgement: Judgement) -> list[dict[str, Any]]:
        children = []
        for bundle, _ in owners_after(judgement):
            known = known_state_of(bundle)
            if bundle is judgement.key or known is None or not self._concerns(parts_of(bundle)):
                continue
            self._note(bundle.name, known)
            children.append({"key": bundle.name} | known._asdict())
        return children

    def _note(self, name: str, known: KnownState | None) -> None:
        if known is None:
            self._known.pop(name, None)
        else:
            self._known[name] = known
