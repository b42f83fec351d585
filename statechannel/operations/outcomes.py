"""JSON conversion of outcomes: for the requests topic, the command line and logs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

from statechannel.engine import commands

if TYPE_CHECKING:
    from statechannel.engine.commands import Outcome


class Answer(StrEnum):
    """The possible results of a command (protocol.md section 7)."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    UNKNOWN = "unknown"


OutcomeName = Literal[
    "owned", "unowned", "bound-to", "not-found", "undetermined", "started", "done", "rejected", "unknown"
]
_TYPES: dict[str, type[Any]] = {
    "owned": commands.Owned,
    "unowned": commands.Unowned,
    "bound-to": commands.BoundTo,
    "not-found": commands.NotFound,
    "undetermined": commands.Undetermined,
    "started": commands.Started,
    "done": commands.Done,
    "rejected": commands.Rejected,
    "unknown": commands.Unknown,
}
_NAMES = {kind: name for name, kind in _TYPES.items()}
_FORMER: dict[str, dict[str, str]] = {
    "not-found": {"why": "message"},
    "undetermined": {"why": "reason", "detail": "message"},
    "rejected": {"detail": "message"},
    "unknown": {"detail": "message"},
}
"""Names of fields in replies of versions before 0.2."""


def answer_of(outcome: Outcome) -> Answer:
    match outcome:
        case commands.Rejected() | commands.NotFound():
            return Answer.REJECTED
        case commands.Unknown() | commands.Undetermined():
            return Answer.UNKNOWN
        case _:
            return Answer.ACCEPTED


def name_of(outcome: Outcome) -> str:
    """The name of this kind of outcome in JSON and in metrics."""
    return _NAMES[type(outcome)]


def to_json(outcome: Outcome) -> dict[str, Any]:
    """A flat object: `outcome` names the kind, the rest are its fields."""
    document: dict[str, Any] = {"outcome": name_of(outcome)}
    for field in fields(outcome):
        value = getattr(outcome, field.name)
        document[field.name] = plain(value)
    return document


def plain(value: object) -> Any:
    """A JSON value: enums as text, tuples as lists, unknown types as text."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    return str(value)


def from_json(document: Mapping[str, Any]) -> Outcome:
    """The outcome that `to_json` of this version, or an earlier one, wrote; unknown fields are ignored.

    Raises:
        ValueError: It is not an outcome.
    """
    kind = _TYPES.get(str(document.get("outcome")))
    if kind is None:
        raise ValueError(f"no outcome is called {document.get('outcome')!r}")
    known = {field.name for field in fields(kind)}
    former = _FORMER.get(str(document["outcome"]), {})
    values = {former.get(name, name): value for name, value in document.items() if former.get(name, name) in known}
    if kind is commands.NotFound:
        values.setdefault("reason", "not-found")
    try:
        if "declines" in values:
            parts = [field.name for field in fields(commands.Declined)]
            values["declines"] = tuple(commands.Declined(*map(item.get, parts)) for item in values["declines"])
        outcome: Outcome = kind(**values)
    except (TypeError, AttributeError) as error:
        raise ValueError(f"an outcome without all its fields: {error}") from error
    return outcome
