"""Codec of policy records in `NAME-policies` (design/policies.md), strict. Pure.

Every deviation from the format is refused with a reason, unknown fields included: a reader that ignored a field of a
later version might allow what it forbids. The effect of an invalid record is defined in `shedders.policies.book`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

import orjson

from loaddata.model.figures import LATEST_MS
from shedders.policies.kinds import RULES, BadPolicyError, PolicyKind, complete
from statechannel.protocol.side_record import InvalidRecord, load_object

FORMAT: Final = 1
VALUE_MAX_BYTES: Final = 100_000
KEY_MAX_BYTES: Final = 1_000
BY_MAX: Final = 256
WHY_MAX: Final = 1_000
SYSTEM: Final = "system:"
"""First part of writers that are no people; `Author` is the grammar."""
OVERRIDE: Final = "override"
"""First part of the keys of temporary policies, which override the standing one of the same kind and name."""

_KINDS = {str(kind): kind for kind in PolicyKind}
_OUTER = ("format", "kind", "name", "by", "why", "until_ms", "written_at_ms")


class InvalidPolicyReason(StrEnum):
    """Why a record is invalid: stable words, counted."""

    KEY = "key"
    UNKNOWN_KIND = "unknown-kind"
    NAME = "name"
    TOO_LARGE = "too-large"
    NOT_JSON = "not-json"
    FORMAT = "format"
    MISMATCH = "mismatch"
    HEADER = "header"
    FIELDS = "fields"


class PolicyKey(NamedTuple):
    """Key of a record.

    Attributes:
        override: A temporary policy: key `override/KIND/NAME` in place of `KIND/NAME`.
    """

    kind: PolicyKind
    name: str
    override: bool = False

    @property
    def text(self) -> str:
        plain = f"{self.kind}/{self.name}"
        return f"{OVERRIDE}/{plain}" if self.override else plain

    def encode(self) -> bytes:
        return self.text.encode()


class Author(NamedTuple):
    """Who wrote a policy, as the field `by` has it: a person, or a drain on behalf of one.

    Attributes:
        person: Name of the person, such as user@host.
        drain: Id of the drain that wrote the policy; None where the person wrote it.
    """

    person: str
    drain: str | None = None

    @classmethod
    def parse(cls, by: str) -> Author:
        """`system:drain/ID/PERSON`; everything else is the name of a person."""
        prefix, slash, rest = by.partition("/")
        drain, also, person = rest.partition("/")
        if prefix == f"{SYSTEM}drain" and slash and also and drain:
            return cls(person, drain)
        return cls(by)

    @property
    def by(self) -> str:
        """As the record has it; a name that is too long is cut off."""
        prefix = "" if self.drain is None else f"{SYSTEM}drain/{self.drain}/"
        return (prefix + self.person)[:BY_MAX]

    @property
    def text(self) -> str:
        return self.person if self.drain is None else f"{self.person} (drain {self.drain})"


@dataclass(frozen=True, slots=True)
class PolicyRecord:
    """One policy as it was written.

    Attributes:
        value: Fields of its kind, all of them (`policy_kinds.RULES`).
        by: Who wrote it (`Author`); `why` in a person's words, empty where none are given.
        until_ms: Log time at which it expires; None: never.
        written_at_ms: The writer's wall clock; for people.
    """

    key: PolicyKey
    value: Mapping[str, Any] = field(default_factory=dict)
    by: str = ""
    why: str = ""
    until_ms: int | None = None
    written_at_ms: int = 0


# --- keys -----------------------------------------------------------------------------------------------------------


def made_key(kind: PolicyKind, name: str, *, override: bool = False) -> PolicyKey:
    """A key of these parts.

    Raises:
        BadPolicyError: The name is not valid for that kind.
    """
    if not RULES[kind].is_name(name):
        raise BadPolicyError(f"`{name}` is not {RULES[kind].named}, the name of a policy of kind {kind}")
    return PolicyKey(kind, name, override)


def decode_key(key: bytes | None) -> PolicyKey | InvalidRecord:
    if key is None or len(key) > KEY_MAX_BYTES:
        return InvalidRecord(
            InvalidPolicyReason.KEY, "there is no key" if key is None else f"the key has {len(key)} bytes"
        )
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return InvalidRecord(InvalidPolicyReason.KEY, "the key is not UTF-8")
    word, slash, name = text.partition("/")
    override = word == OVERRIDE
    if override:
        word, slash, name = name.partition("/")
    if not slash:
        return InvalidRecord(InvalidPolicyReason.KEY, f"the key {text!a} is not KIND/NAME")
    kind = _KINDS.get(word)
    if kind is None:
        return InvalidRecord(InvalidPolicyReason.UNKNOWN_KIND, f"unknown kind of policy {word!a}")
    if not RULES[kind].is_name(name):
        return InvalidRecord(InvalidPolicyReason.NAME, f"{name!a} is not {RULES[kind].named}")
    return PolicyKey(kind, name, override)


# --- values ---------------------------------------------------------------------------------------------------------


def encode(record: PolicyRecord) -> bytes:
    """The record's value.

    Raises:
        BadPolicyError: It could not be read back unchanged.
    """
    key = record.key
    loaded = {
        "format": FORMAT,
        "kind": str(key.kind),
        "name": key.name,
        **record.value,
        "by": record.by,
        "why": record.why,
        "until_ms": record.until_ms,
        "written_at_ms": record.written_at_ms,
    }
    clash = sorted(set(record.value) & set(_OUTER))
    if clash:
        raise BadPolicyError(f"policy {key.text}: `{clash[0]}` is not a field of its value")
    try:
        value = orjson.dumps(loaded)
    except orjson.JSONEncodeError as error:
        raise BadPolicyError(f"policy {key.text} cannot be written: {error}") from error
    decoded = decode(decode_key(key.encode()), value)
    if isinstance(decoded, InvalidRecord):
        raise BadPolicyError(f"policy {key.text} cannot be written: {decoded.why}")
    return value


def decode(key: PolicyKey | InvalidRecord, value: bytes) -> PolicyRecord | InvalidRecord:
    if isinstance(key, InvalidRecord):
        return key
    loaded = load_object(value, InvalidPolicyReason, max_bytes=VALUE_MAX_BYTES, format_number=FORMAT)
    if isinstance(loaded, InvalidRecord):
        return loaded
    if loaded.get("kind") != str(key.kind) or loaded.get("name") != key.name:
        return InvalidRecord(InvalidPolicyReason.MISMATCH, "kind and name are not those of the key")
    wrong = _header_wrong(key, loaded)
    if wrong is not None:
        return InvalidRecord(InvalidPolicyReason.HEADER, wrong)
    fields = complete(key.kind, {name: value for name, value in loaded.items() if name not in _OUTER})
    if isinstance(fields, str):
        return InvalidRecord(InvalidPolicyReason.FIELDS, fields)
    return PolicyRecord(key, fields, loaded["by"], loaded["why"], loaded.get("until_ms"), loaded["written_at_ms"])


def _header_wrong(key: PolicyKey, loaded: Mapping[str, Any]) -> str | None:
    by, why, until_ms = loaded.get("by"), loaded.get("why"), loaded.get("until_ms")
    if not isinstance(by, str) or not 0 < len(by) <= BY_MAX:
        return f"by is not a text of 1 to {BY_MAX} characters"
    if not isinstance(why, str) or len(why) > WHY_MAX:
        return f"why is not a text of at most {WHY_MAX} characters"
    if not _is_time(loaded.get("written_at_ms")):
        return "written_at_ms is not a time"
    if until_ms is not None and not _is_time(until_ms):
        return "until_ms is neither null nor a time"
    if key.override and until_ms is None:
        return "a temporary policy has no until_ms"
    return None


def _is_time(value: Any) -> bool:
    return type(value) is int and 0 <= value <= LATEST_MS
