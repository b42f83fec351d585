"""What each record of a history changed, why it was written, and what stood in the way of those that were rejected. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from statechannel.audit.rejections import winner_fields
from statechannel.audit.story import lost_of
from statechannel.core.bundle import KeyParts, parse_key
from statechannel.core.inputs import RecordRead
from statechannel.core.keys import KeyState
from statechannel.core.record import Record
from statechannel.core.verdict import REJECTIONS, Verdict
from statechannel.core.view import Judgement, View

_CHILDREN_MAX = 64
_OPERATIONS_MAX = 10_000


class Standing(NamedTuple):
    """Accepted state of a key as far as people ask for it."""

    state: str
    owner: str | None
    generation: int | None
    to: str | None
    version: int


def standing_of(key: KeyState) -> Standing | None:
    """What a reader holds of a key; None where it does not exist."""
    return None if key.state is None else Standing(key.state.value, key.owner, key.generation, key.to, key.version)


class Changes:
    """Remembers how the keys of a history stand, and by which record each operation began.

    Args:
        concerns: Whether a key belongs to the history; nothing else is remembered.
    """

    def __init__(self, concerns: Callable[[KeyParts], bool]) -> None:
        self._concerns = concerns
        self._standing: dict[str, Standing] = {}
        self._began: dict[str, dict[str, Any]] = {}

    def begin(self, view: View, namespace: str) -> None:
        """Start from a view."""
        for key in view.existing():
            if key.namespace == namespace and self._concerns(KeyParts(key.namespace, key.lower, key.upper)):
                self._note(key.name, standing_of(key))

    def told(self, record: RecordRead, judgement: Judgement) -> dict[str, Any]:
        """What is to be added to the line of one record, for the JSON output."""
        decoded, key = judgement.record, judgement.key
        found: dict[str, Any] = {
            "incarnation": None,
            "flow": None,
            "decision": None,
            "lost": None,
            "began": None,
            "before": None,
            "after": None,
            "children": None,
            "winner": winner_fields(judgement) if judgement.verdict in REJECTIONS else None,
        }
        if decoded is not None:
            lost = lost_of(decoded)
            found |= {
                "incarnation": decoded.incarnation,
                "flow": decoded.text("flow"),
                "decision": decoded.text("decision"),
                "lost": None if lost is None else lost._asdict(),
                "began": self._origin(record, decoded),
            }
        if judgement.verdict is Verdict.ACCEPTED and key is not None and decoded is not None:
            found |= self._accepted(record, decoded, key)
        return found

    def _accepted(self, record: RecordRead, decoded: Record, key: KeyState) -> dict[str, Any]:
        before, after = self._standing.get(key.name), standing_of(key)
        if key.is_namespace:
            self._standing.clear()  # a new ring, or none: what its bundles were is over
        self._note(key.name, after)
        found: dict[str, Any] = {
            "before": None if before is None else before._asdict(),
            "after": None if after is None else after._asdict(),
        }
        children = self._children(key)
        if decoded.children is not None:
            found["children"] = {"count": len(decoded.children), "of_this": children[:_CHILDREN_MAX]}
        operation = decoded.text("operation")
        if operation is not None and operation not in self._began:
            if len(self._began) >= _OPERATIONS_MAX:
                del self._began[next(iter(self._began))]
            self._began[operation] = {
                "offset": record.offset,
                "by": decoded.broker,
                "action": decoded.text("action"),
                "reason": decoded.text("reason"),
            }
        return found

    def _children(self, key: KeyState) -> list[dict[str, Any]]:
        """The derived bundles that belong to the history."""
        found = []
        for child in key.children or ():
            name = f"{key.namespace}/{child}"
            parts = parse_key(name.encode())
            if parts is None or key.ring is None or not self._concerns(parts):
                continue
            state = key.ring.live.get(parts.lower)
            standing = None if state is None else standing_of(state)
            self._note(name, standing)
            found.append({"key": name} | ({} if standing is None else standing._asdict()))
        return found

    def _note(self, name: str, standing: Standing | None) -> None:
        if standing is None:
            self._standing.pop(name, None)
        else:
            self._standing[name] = standing

    def _origin(self, record: RecordRead, decoded: Record) -> dict[str, Any] | None:
        """The record by which the operation began that this one goes on with."""
        operation = decoded.text("operation")
        began = None if operation is None else self._began.get(operation)
        return None if began is None or began["offset"] == record.offset else began
