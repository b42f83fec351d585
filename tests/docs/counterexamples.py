"""Small logs for `design/protocol.md`: each shows what a joining member gets wrong without one rule.

The claim that each log is held against: where a reader of the whole log sees no debt, a member that reads what the cleaner left
holds the same accepted states. `tests/docs/test_counterexamples.py` shows that the claim holds for every log, and no longer holds
once the rule is taken away (by the planted bug of that name).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from statechannel.protocol.codec import encode
from statechannel.protocol.joiner import Joiner
from statechannel.protocol.view import View
from tests.mutants import planted

NAMESPACE = b"t/n"
RING = "0x00000000_0xffffffff"
BUNDLE = f"t/n/{RING}".encode()


class Line(NamedTuple):
    """One record; `value` None is a null, bytes stand as they are."""

    key: bytes
    value: Mapping[str, Any] | bytes | None


class Counterexample(NamedTuple):
    """A log, what the cleaner has removed of it, and the rule that it needs.

    Attributes:
        plant: The planted bug that takes the rule away.
        section: Of `design/protocol.md`.
        rule: The rule, as a sentence.
        cleaned: Offsets that the cleaner removed before the member reads.
    """

    plant: str
    section: int
    rule: str
    log: Sequence[Line]
    cleaned: frozenset[int] = frozenset()


def _head(kind: str, record_id: str, covers: int) -> dict[str, Any]:
    return {"format": 1, "kind": kind, "id": record_id, "covers": covers, "by": {"broker": "b1", "incarnation": "i1"}}


def _namespace(record_id: str, state: str, version: int, base: str | None, covers: int) -> Line:
    fields = _head("proposal", record_id, covers) | {"version": version, "base": base, "state": state}
    return Line(NAMESPACE, fields | ({"children": [RING]} if state == "Active" else {}))


def _bundle(
    record_id: str, state: str, version: int, base: str, covers: int, to: str | None = None, from_: str | None = None
) -> Line:
    fields = _head("proposal", record_id, covers) | {"version": version, "base": base, "state": state}
    return Line(BUNDLE, fields | {"from": from_, "to": to})


def _assert(record_id: str, state: str, version: int, asserts: str, covers: int, to: str | None) -> Line:
    fields = _head("assert", record_id, covers) | {"version": version, "asserts": asserts, "state": state}
    return Line(BUNDLE, fields | {"from": None, "to": to})


_ACTIVE = _namespace("n", "Active", 1, None, -1)
_TO_B1 = _bundle("a", "Assigning", 2, f"n/{RING}", 0, to="b1")
_JUNK = _bundle("x", "Assigned", 9, "zz", 0, to="b9")

COUNTEREXAMPLES = (
    Counterexample(
        "stale-version-taken-for-clean", 3,
        "A rejected record puts its key in debt.",
        (_ACTIVE, _TO_B1, _bundle("b", "Assigning", 2, f"n/{RING}", 0, to="b2")),
        frozenset({1}),
    ),
    Counterexample(
        "duplicate-taken-for-clean", 3,
        "So does a second record with the accepted id: its other fields may differ.",
        (_ACTIVE, _TO_B1, _bundle("a", "Assigning", 2, f"n/{RING}", 0, to="b9")),
        frozenset({1}),
    ),
    Counterexample(
        "undecodable-taken-for-clean", 3,
        "So do bytes that are no record.",
        (_ACTIVE, _TO_B1, Line(BUNDLE, b"?")),
        frozenset({1}),
    ),
    Counterexample(
        "null-settles-live-key", 3,
        "So does a null on a key that exists.",
        (_ACTIVE, _TO_B1, Line(BUNDLE, None)),
        frozenset({1}),
    ),
    Counterexample(
        "paid-by-too-little", 3,
        "A clean record settles its key only if it covers the newest unclean record, or has a version above all of them.",
        (_ACTIVE, _TO_B1, _JUNK, _bundle("b", "Assigned", 3, "a", 1, to="b1")),
    ),
    Counterexample(
        "paid-by-equal-version", 3,
        "An equal version is not above it.",
        (_ACTIVE, _TO_B1, _bundle("x", "Assigned", 3, "zz", 0, to="b9"), _bundle("b", "Assigned", 3, "a", 1, to="b1")),
    ),
    Counterexample(
        "settled-record-uncovered", 3,
        "A clean record settles its key only if it covers the record that settled the key before.",
        (_ACTIVE, _TO_B1, _JUNK, _assert("c", "Assigning", 2, "a", 2, "b1"), _bundle("b", "Assigned", 3, "a", 1, to="b1")),
        frozenset({3}),
    ),
    Counterexample(
        "covers-ignored", 4,
        "A joining member takes a record that covers the held one, whatever its version.",
        (_ACTIVE, _TO_B1, _JUNK, _assert("c", "Assigning", 2, "a", 2, "b1")),
    ),
    Counterexample(
        "versions-ignored", 4,
        "It takes a record of a higher version, whatever it covers.",
        (_ACTIVE, _TO_B1, _bundle("b", "Assigning", 2, f"n/{RING}", 0, to="b2"), _bundle("c", "Assigned", 3, "a", 1, to="b1")),
        frozenset({1}),
    ),
    Counterexample(
        "stale-children-believed", 4,
        "A derived state stands unless the key's own record has at least its version.",
        (
            _ACTIVE, _TO_B1, _bundle("b", "Unassigned", 3, "a", 1, from_="b1"),
            _namespace("d", "Deleted", 4, "n", 2), _namespace("m", "Active", 5, "d", 3),
        ),
    ),
    Counterexample(
        "version-reset", 2,
        "Versions go on through a deletion of the namespace.",
        (
            _ACTIVE, _TO_B1, _bundle("b", "Unassigned", 3, "a", 1, from_="b1"),
            _namespace("d", "Deleted", 4, "n", 2), _namespace("m", "Active", 5, "d", 3),
        ),
    ),
)  # fmt: skip


def states_of(view: View) -> dict[bytes, tuple[Any, ...]]:
    """Accepted states by key."""
    return {key.key: (key.version, key.state, key.from_, key.to, key.accepted_id) for key in view.existing()}


def without(example: Counterexample, offset: int) -> Counterexample:
    """The log with one record less; the cleaner removes only what a later record of its key hides."""
    log = [line for place, line in enumerate(example.log) if place != offset]
    moved = {place - (place > offset) for place in example.cleaned if place != offset}
    hidden = {place for place, line in enumerate(log) if any(later.key == line.key for later in log[place + 1 :])}
    return example._replace(log=log, cleaned=frozenset(moved & hidden))


class Readings(NamedTuple):
    """What a reader of the whole log and a joining member make of a log.

    Attributes:
        verdicts: Of each record, for the reader of the whole log.
        in_debt: Whether it holds any key in debt at the end: then no heartbeat is clean, and no join completes.
        accepted, joined: The state of the bundle for the one and for the other; None: it does not exist.
        agree: Whether all their accepted states are equal.
    """

    verdicts: Sequence[str]
    in_debt: bool
    accepted: tuple[Any, ...] | None
    joined: tuple[Any, ...] | None
    agree: bool


def read(example: Counterexample) -> Readings:
    """Read the log in full, and what is left of it as a joining member does."""
    view, joiner = View(0, 1), Joiner(0, 1)
    verdicts = []
    for offset, line in enumerate(example.log):
        value = encode(dict(line.value)) if isinstance(line.value, Mapping) else line.value
        verdicts.append(str(view.read(offset, line.key, value).verdict))
        if offset not in example.cleaned:
            joiner.read(offset, line.key, value)
    accepted, joined = states_of(view), states_of(joiner.view())
    return Readings(verdicts, bool(view.ledger.open), accepted.get(BUNDLE), joined.get(BUNDLE), accepted == joined)


def _line(offset: int, line: Line, verdict: str, *, cleaned: bool) -> str:
    if line.value is None:
        words = "null"
    elif isinstance(line.value, bytes):
        words = "bytes that are no record"
    else:
        fields = line.value
        kind = "assert" if fields["kind"] == "assert" else "proposal"
        built_on = fields.get("asserts", fields.get("base"))
        to = f" to {fields['to']}" if fields.get("to") else ""
        words = f"{kind} {fields['id']}: {fields['state']}{to}, version {fields['version']} on {built_on or 'nothing'}"
        words += f", covers {fields['covers']}"
    key = "bundle" if line.key == BUNDLE else "namespace"
    return f"  {offset}  {key:<9}  {words}: {verdict}{'   (cleaned away)' if cleaned else ''}"


def _state(state: tuple[Any, ...] | None) -> str:
    if state is None:
        return "no bundle"
    version, name, _, to, record_id = state
    return f"{name}{f' to {to}' if to else ''}, version {version}, by {record_id}"


def section(number: int) -> str:
    """The counterexamples of a section of the page."""
    lines = []
    for example in COUNTEREXAMPLES:
        if example.section != number:
            continue
        with planted(example.plant):
            without_rule = read(example)
        lines += [example.rule, f"  without it (planted bug `{example.plant}`):"]
        lines += [
            _line(offset, line, without_rule.verdicts[offset], cleaned=offset in example.cleaned)
            for offset, line in enumerate(example.log)
        ]
        lines += [f"  accepted: {_state(without_rule.accepted)}", f"  joined:   {_state(without_rule.joined)}", ""]
    return "```text\n" + "\n".join(lines).rstrip() + "\n```"
