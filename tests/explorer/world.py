"""The small world: its keys, and every record that may come next in a log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from statechannel.protocol.codec import HEARTBEAT_KEY
from statechannel.protocol.keys import KeyState
from statechannel.protocol.states import BUNDLE_STATES, FORCED, MOVES, State

NAMESPACE = "t/n"
RING = ("0x00000000_0x80000000", "0x80000000_0xffffffff")
HALVES = ("0x00000000_0x40000000", "0x40000000_0x80000000")
"""Children of the first bundle, which is the one that may split."""
THIRDS = ("0x00000000_0x20000000", "0x20000000_0x40000000", "0x40000000_0x80000000")
"""Another split of it, in which the child on whose key records are written does not exist."""
OTHER_RING = (HALVES[0], "0x40000000_0xffffffff")
"""A second ring: this child is a bundle of it, and the bundles of the first ring do not exist."""
WRONG_SPLITS = (HALVES[:1], (RING[0],), ("0x80000000_0xc0000000", "0xc0000000_0xffffffff"))
"""Children that leave a part out, that are their parent again, and those of another bundle."""
WRONG_RINGS = (RING[:1], ("0x00000000_0x80000000", "0x40000000_0xffffffff"))
"""Ranges that leave a part out, and that overlap."""
ROOT, LOW, HIGH, CHILD = (
    name.encode() for name in (NAMESPACE, *(f"{NAMESPACE}/{part}" for part in (*RING, HALVES[0])))
)
KEYS = (ROOT, LOW, HIGH, CHILD)
"""The keys on which records are written. The other half exists by derivation alone."""
JUNK_BASE = "no-such-record"
UNDECODABLE = b"?"


class Letter(NamedTuple):
    """A record that may come next.

    Attributes:
        value: None is a null.
    """

    key: bytes
    value: bytes | None


class Claim(NamedTuple):
    """An accepted state as a process may have read it, which it may restate from then on.

    Attributes:
        seen: The last record of the key that it had read; -1: none.
    """

    state: State
    version: int
    base: str | None
    from_: str | None
    to: str | None
    children: tuple[str, ...] | None
    seen: int

    @classmethod
    def of(cls, key: KeyState | None, seen: int) -> Claim:
        """What a reader that holds this state may restate."""
        if key is None or key.state is None:
            return cls(State.ABSENT, 0, None, None, None, None, seen)
        children = None if key.children is None else tuple(key.children)
        return cls(key.state, key.version, key.accepted_id, key.from_, key.to, children, seen)


class KeyFacts(NamedTuple):
    """What the next record of a key depends on.

    Attributes:
        state: The accepted state; None if the key does not exist.
        known: Offsets of its records that a `covers` may be compared with.
        versions: Versions that the next one may be compared with.
        claims: What processes may restate.
        copies: Values of earlier records of the key that were accepted: the client may write them again.
    """

    state: KeyState | None
    known: Sequence[int]
    versions: Iterable[int]
    claims: Iterable[Claim]
    copies: Iterable[bytes]


def letters(facts: Mapping[bytes, KeyFacts], offset: int) -> Iterator[Letter]:
    """Every record that may come next, one for each class of equal ones.

    Any process may write anything but asserts of what was never accepted; `covers` may claim anything. Names of brokers are only
    compared with those of the accepted state: one stands for all that compare alike.
    """
    top = max((version for each in facts.values() for version in each.versions), default=0)
    record_id = f"r{offset}"
    for key in KEYS:
        yield from _of_key(key, facts[key], record_id, top)


def _of_key(key: bytes, facts: KeyFacts, record_id: str, top: int) -> Iterator[Letter]:
    covers = (-1, *facts.known)
    state = facts.state
    exists = state is not None and state.state is not None
    for fields in (*moves(key, state), *refused_moves(key, state)):
        yield from (write(key, record_id, covered, **fields) for covered in covers)
    for version in range(top + 3):
        junk = {"version": version, "base": JUNK_BASE, **_junk_content(key)}
        yield from (write(key, record_id, covered, **junk) for covered in covers)
        yield write(key, record_id, covers[-1], **junk | {"children": ["0x00000000_0x00000001"], "state": _split(key)})
    if exists and state is not None and not state.derived:
        again = {"version": state.version, "base": JUNK_BASE, **_junk_content(key)}
        yield write(key, state.record_id or "", covers[-1], **again)
    yield from (Letter(key, value) for value in facts.copies)
    yield Letter(key, UNDECODABLE)
    yield Letter(key, None)
    for claim in facts.claims:
        yield restate(key, record_id, claim)


def _split(key: bytes) -> str:
    return State.ACTIVE if key == ROOT else State.DELETED


def _junk_content(key: bytes) -> dict[str, Any]:
    if key == ROOT:
        return {"state": State.ACTIVE, "children": OTHER_RING}
    return {"state": State.ASSIGNED, "from": None, "to": "z"}


def write(key: bytes, record_id: str, covers: int, **fields: Any) -> Letter:
    """A proposal."""
    return Letter(key, orjson.dumps({**_head("proposal", record_id, covers), **fields}))


def restate(key: bytes, record_id: str, claim: Claim, writer: str = "w") -> Letter:
    """An assert."""
    fields = _head("assert", record_id, claim.seen, writer) | {
        "version": claim.version,
        "asserts": claim.base,
        "state": claim.state,
    }
    if key != ROOT:
        fields |= {"from": claim.from_, "to": claim.to}
    if claim.children is not None:
        fields["children"] = claim.children
    return Letter(key, orjson.dumps(fields))


def heartbeat(clean_to: int, writer: str = "w", **names: Any) -> Letter:
    """A heartbeat that vouches through this offset; -1: for nothing. With what it names of its writer's view."""
    fields = _head("heartbeat", "h", clean_to, writer)
    by = fields.pop("by")
    return Letter(HEARTBEAT_KEY, orjson.dumps(fields | {"clean_to": clean_to, **names, "by": by}))


def _head(kind: str, record_id: str, covers: int, writer: str = "w") -> dict[str, Any]:
    by = {"broker": writer, "incarnation": f"{writer}-1"}
    return {"format": 1, "kind": kind, "id": record_id, "covers": covers, "by": by}


def moves(key: bytes, state: KeyState | None) -> Iterator[dict[str, Any]]:
    """Every proposal that the resolver has to accept, up to the names of brokers."""
    if key == ROOT:
        yield from _namespace_moves(state)
    elif state is not None and state.state is not None:
        head = {"version": state.version + 1, "base": state.accepted_id}
        yield from (head | fields for fields in _bundle_moves(key, state))


def _namespace_moves(state: KeyState | None) -> Iterator[dict[str, Any]]:
    if state is None or state.state is None:
        heads = [{"version": 1, "base": None}, {"version": 2, "base": None}]
    else:
        heads = [{"version": state.version + 1, "base": state.accepted_id}]
    if state is None or state.state is not State.ACTIVE:
        yield from (head | {"state": State.ACTIVE, "children": ring} for head in heads for ring in (RING, OTHER_RING))
    elif state.ring is not None:
        for version in sorted({state.version + 1, state.ring.highest + 1}):
            yield {"version": version, "base": state.accepted_id, "state": State.DELETED}


def _bundle_moves(key: bytes, state: KeyState) -> Iterator[dict[str, Any]]:
    from_, to = state.from_, state.to
    other = "b" if to == "a" else "a"
    match state.state:
        case State.UNASSIGNED:
            yield _move(State.ASSIGNING, None, "a")
        case State.ASSIGNING:
            yield _move(State.ASSIGNED, from_, to)
            yield _move(State.UNASSIGNED, to, None)
        case State.ASSIGNED:
            yield _move(State.ASSIGNED, None, to)
            yield _move(State.RELEASING, to, None)
            yield _move(State.RELEASING, to, other)
            if key == LOW:
                yield _move(State.SPLITTING, to, None)
        case State.RELEASING:
            yield _move(State.UNASSIGNED, from_, None) if to is None else _move(State.ASSIGNING, from_, to)
            yield _move(State.ASSIGNED, None, from_)
        case State.SPLITTING:
            yield from (_move(State.DELETED, from_, None) | {"children": children} for children in (HALVES, THIRDS))
            yield _move(State.ASSIGNED, None, from_)
    if state.state is not State.DELETED:
        yield _move(State.UNASSIGNED, None, None) | {"forced": True}
        yield _move(State.ASSIGNING, None, other) | {"forced": True}


def refused_moves(key: bytes, state: KeyState | None) -> Iterator[dict[str, Any]]:
    """Proposals of the right version on the right base that the resolver must not accept: of each kind one."""
    if key == ROOT:
        yield from _refused_by_namespace(state)
    elif state is not None and state.state is not None:
        head = {"version": state.version + 1, "base": state.accepted_id}
        yield from (head | fields for fields in _refused_by_bundle(state))


def _refused_by_namespace(state: KeyState | None) -> Iterator[dict[str, Any]]:
    if state is None or state.state is None:
        head: dict[str, Any] = {"version": 1, "base": None}
        yield {"version": 0, "base": None, "state": State.ACTIVE, "children": RING}
    else:
        head = {"version": state.version + 1, "base": state.accepted_id}
    if state is not None and state.state is State.ACTIVE:
        yield head | {"state": State.ACTIVE, "children": RING}
        highest = state.version if state.ring is None else state.ring.highest
        yield head | {"version": highest + 1, "state": State.DELETED, "forced": True}
        return
    yield head | {"state": State.DELETED}
    yield head | {"state": State.ACTIVE, "children": RING, "forced": True}
    yield from (head | {"state": State.ACTIVE, "children": ring} for ring in WRONG_RINGS)


def _refused_by_bundle(state: KeyState) -> Iterator[dict[str, Any]]:
    """To each state with a broker that is not there; to those that are listed nowhere also with the brokers that fit."""
    was, stranger = state.state or State.DELETED, "y"
    listed = {to for from_, to in MOVES if from_ is was}
    for to in sorted(BUNDLE_STATES):
        children = {"children": HALVES} if to is State.DELETED else {}
        if to in listed:
            yield _move(to, stranger, stranger) | children
        else:
            yield _move(to, state.to or state.from_, None) | children
        if to not in FORCED or was is State.DELETED:
            yield _move(to, None, state.to or state.from_) | children | {"forced": True}
    if was is not State.DELETED:
        yield _move(State.UNASSIGNED, None, stranger) | {"forced": True}
        yield _move(State.ASSIGNING, None, None) | {"forced": True}
    if was is State.SPLITTING:
        yield from (_move(State.DELETED, state.from_, None) | {"children": children} for children in WRONG_SPLITS)


def _move(state: State, from_: str | None, to: str | None) -> dict[str, Any]:
    return {"state": state, "from": from_, "to": to}


def _start(*moves: State) -> tuple[Letter, ...]:
    """The namespace, and these moves of its first bundle; each writer has read all that was before."""
    log = [write(ROOT, "r0", -1, state=State.ACTIVE, children=RING, version=1, base=None)]
    from_, to, base = None, "a", f"r0/{RING[0]}"
    for offset, state in enumerate(moves, 1):
        if state is State.SPLITTING:
            from_, to = to, None
        log.append(
            write(LOW, f"r{offset}", offset - 1, **_move(state, from_, to), version=offset + 1, base=base)  # type: ignore[arg-type]
        )
        base = f"r{offset}"
    return tuple(log)


START: Mapping[str, tuple[Letter, ...]] = {
    "empty": (),
    "owned": _start(State.ASSIGNING, State.ASSIGNED),
    "splitting": _start(State.ASSIGNING, State.ASSIGNED, State.SPLITTING),
}
"""Logs with which a search may begin."""
