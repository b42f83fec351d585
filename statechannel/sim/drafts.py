"""Records of scripted writers: legal moves on a view, asserts, heartbeats; and what broken and hostile writers write.

Only false asserts and heartbeats are left out, which ACLs prevent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from statechannel.protocol.bundle import bounds_at, children_of, namespace_bounds
from statechannel.protocol.codec import COLD_START_KEY, MAX_INT, encode
from statechannel.protocol.states import BUNDLE_STATES, NAMESPACE_STATES, State

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from statechannel.protocol.keys import KeyState
    from statechannel.protocol.view import View


Fields = dict[str, Any]
_DELETE_IDLE = 0.3
_FORCE = 0.08


class Scribe:
    """Numbers the records of one process."""

    def __init__(self, broker: str, incarnation: str) -> None:
        self.broker = broker
        self.incarnation = incarnation
        self._count = 0

    def head(self, kind: str, covers: int) -> Fields:
        self._count += 1
        return {
            "format": 1,
            "kind": kind,
            "id": f"{self.broker}-{self.incarnation}-{self._count}",
            "covers": covers,
            "by": {"broker": self.broker, "incarnation": self.incarnation},
        }

    def restate(self, key: KeyState, covers: int) -> bytes:
        exists = key.state is not None
        fields = self.head("assert", covers) | {
            "version": key.version if exists else 0,
            "asserts": key.accepted_id if exists else None,
            "state": key.state if exists else State.ABSENT,
        }
        if not key.is_namespace:
            fields |= {"from": key.from_, "to": key.to}
        if exists and key.bounds is not None:
            fields["children"] = key.children
        return encode(fields)

    def heartbeat(self, view: View) -> bytes:
        clean_to = -1 if view.ledger.open else view.applied
        return encode(self.head("heartbeat", view.applied) | {"clean_to": clean_to})

    def proposal(self, key: KeyState, covers: int, fields: Fields) -> Fields:
        base = {"version": key.version + 1, "base": key.accepted_id}
        return self.head("proposal", covers) | base | fields


def cut(rng: Random, lower: int, upper: int) -> list[str] | None:
    """Children of a split in two or three, or None where the range is too small."""
    if upper - lower < 8:  # noqa: PLR2004
        return None
    middle = (lower + upper) // 2
    places = [middle] if rng.random() < 0.7 else [(lower + middle) // 2, middle]  # noqa: PLR2004
    return children_of(bounds_at(lower, upper, places))


def first_ring(rng: Random, bundles: int) -> list[str]:
    return children_of(namespace_bounds(rng.randint(1, bundles)))


def namespace_move(rng: Random, root: KeyState | None, bundles: int) -> Fields:
    if root is None or root.state is not State.ACTIVE or root.ring is None:
        fields: Fields = {"state": State.ACTIVE, "children": first_ring(rng, bundles)}
        if root is None:
            fields["version"] = rng.choice((1, 1, 1, 7))
        return fields
    return {"state": State.DELETED, "version": root.ring.highest + 1}


def bundle_move(rng: Random, key: KeyState, brokers: Sequence[str], *, splits: bool, idle: bool) -> Fields:
    someone = rng.choice(brokers)
    if rng.random() < _FORCE:
        state = rng.choice((State.UNASSIGNED, State.ASSIGNING))
        to = someone if state is State.ASSIGNING else None
        return {"state": state, "from": key.owner, "to": to, "forced": True}
    match key.state:
        case State.UNASSIGNED:
            return {"state": State.ASSIGNING, "from": None, "to": someone}
        case State.ASSIGNING:
            if idle or rng.random() < 0.15:  # noqa: PLR2004
                return {"state": State.UNASSIGNED, "from": key.to, "to": None}
            return {"state": State.ASSIGNED, "from": key.from_, "to": key.to}
        case State.RELEASING:
            if rng.random() < 0.15:  # noqa: PLR2004
                return {"state": State.ASSIGNED, "from": None, "to": key.from_}
            state = State.UNASSIGNED if key.to is None else State.ASSIGNING
            return {"state": state, "from": key.from_, "to": key.to}
        case State.SPLITTING:
            children = cut(rng, key.lower, key.upper)
            if children is None or rng.random() < 0.2:  # noqa: PLR2004
                return {"state": State.ASSIGNED, "from": None, "to": key.from_}
            return {"state": State.DELETED, "from": key.from_, "to": None, "children": children}
        case _:
            roll = rng.random()
            if splits and not idle and roll < 0.25:  # noqa: PLR2004
                return {"state": State.SPLITTING, "from": key.to, "to": None}
            if not idle and roll < 0.4:  # noqa: PLR2004
                return {"state": State.ASSIGNED, "from": None, "to": key.to}
            target = None if idle or someone == key.to or roll < 0.6 else someone  # noqa: PLR2004
            return {"state": State.RELEASING, "from": key.to, "to": target}


def pick_move(
    rng: Random, view: View, namespace: str, brokers: Sequence[str], *, bundles: int, splits: bool, deletion: bool
) -> tuple[KeyState | str, Fields]:
    """What an honest writer might want to do next in a namespace; a name where the key does not exist."""
    root = view.get(namespace)
    if root is None:
        return namespace, namespace_move(rng, None, bundles)
    ring = root.ring
    if ring is None:
        return root, namespace_move(rng, root, bundles)
    if deletion and ring.owned == 0 and rng.random() < _DELETE_IDLE:
        return root, namespace_move(rng, root, bundles)
    live = list(ring.live.values())
    newest = max(live, key=lambda key: (key.version, key.lower))
    chosen = newest if rng.random() < 0.3 else rng.choice(live)  # noqa: PLR2004 - down one path, so that trees get deep
    idle = deletion and len(live) > bundles and rng.random() < 0.7  # noqa: PLR2004
    return chosen, bundle_move(rng, chosen, brokers, splits=splits and len(live) < 3 * bundles, idle=idle)


_BUNDLE_ORDER = tuple(sorted(BUNDLE_STATES))
_NAMESPACE_ORDER = tuple(sorted(NAMESPACE_STATES))
UNDECODABLE = (
    b"", b"junk", b"null", b"[]", b"{}", b'{"format":1}', b'{"format":0}', b"\xff\xfe", b'{"format":1,"kind":"proposal"}',
    b'{"format":1.0}', b'{"format":"2"}', b"NaN", b'{"format":1,"x":' + b"[" * 101 + b"]" * 101 + b"}",
)  # fmt: skip
ODD_KEYS = (b"", b"a", b"a/b/c", b"t/ns/0x00000000_0xFFFFFFFF", b"\xff", b"t//0x00000000_0xffffffff")
CONTROL_KEYS = (b"!", b"!note", b"!heartbeat", b"!cold-startx", b"!\xff")
NEVER = ("0x00000000_0x00000001", "0xffffffff_0x00000000", "0x10000000_0x20000000")


class JunkWrite(NamedTuple):
    what: str
    key: bytes
    value: bytes | None


def _some_key(rng: Random, view: View, namespaces: Sequence[str]) -> tuple[str, KeyState | None]:
    roll = rng.random()
    name = rng.choice(namespaces)
    if roll < 0.15:  # noqa: PLR2004
        return f"{name}/{rng.choice(NEVER)}", None
    keys = sorted((key for key in view.existing() if key.namespace == name), key=lambda key: key.name)
    if not keys or roll < 0.2:  # noqa: PLR2004
        return name, view.get(name)
    key = rng.choice(keys)
    return key.name, key


def hostile(rng: Random, view: View, namespaces: Sequence[str], brokers: Sequence[str], scribe: Scribe) -> JunkWrite:
    """A proposal that may say anything: any version, any base, any state, any key, any `covers`."""
    name, key = _some_key(rng, view, namespaces)
    is_namespace = name.count("/") == 1
    version = key.version if key is not None else 0
    covers = rng.choice((view.applied, view.applied, -1, max(-1, view.applied - 5), view.applied + 7, MAX_INT))
    fields: dict[str, Any] = scribe.head("proposal", covers)
    fields["version"] = max(0, rng.choice((version + 1, version + 1, version, version - 1, version + 2, version + 60)))
    bases = [key.accepted_id if key is not None else None, None, "zz", "zz/0x00000000_0x7fffffff"]
    fields["base"] = rng.choice((bases[0], *bases))
    fields["state"] = rng.choice(_NAMESPACE_ORDER if is_namespace else _BUNDLE_ORDER)
    fields["forced"] = rng.random() < 0.2  # noqa: PLR2004
    known = [None, *brokers]
    if key is not None:
        known += [key.from_, key.to]
    fields |= {"from": rng.choice(known), "to": rng.choice(known)}
    fields["children"] = _children(rng, key, is_namespace=is_namespace)
    return JunkWrite(f"hostile {fields['state']} v{fields['version']} covers {covers}", name.encode(), encode(fields))


def near_miss(rng: Random, view: View, namespaces: Sequence[str], brokers: Sequence[str], scribe: Scribe) -> JunkWrite:
    """A legal move with one thing wrong in it."""
    namespace = rng.choice(namespaces)
    chosen, move = pick_move(rng, view, namespace, brokers, bundles=4, splits=True, deletion=True)
    name = chosen if isinstance(chosen, str) else chosen.name
    version = 0 if isinstance(chosen, str) else chosen.version
    base = None if isinstance(chosen, str) else chosen.accepted_id
    fields = scribe.head("proposal", view.applied) | {"version": version + 1, "base": base} | move
    wrong = rng.choice(("children", "children", "from", "to", "base", "version", "use"))
    if wrong == "children" and "children" in fields:
        fields["children"] = rng.choice((fields["children"][:-1], fields["children"][1:], fields["children"][::-1]))
    elif wrong == "use" and name == namespace and not isinstance(chosen, str) and chosen.ring is not None:
        fields |= {"state": State.DELETED, "version": chosen.ring.highest + 1}
    elif wrong in ("from", "to"):
        fields[wrong] = rng.choice((None, *brokers))
    elif wrong == "base":
        fields["base"] = "zz"
    else:
        fields["version"] = rng.choice((version, version + 2))
    return JunkWrite(f"near miss {fields['state']} v{fields['version']}", name.encode(), encode(fields))


def forged(
    rng: Random, view: View, namespaces: Sequence[str], brokers: Sequence[str], scribe: Scribe, copied: str | None
) -> JunkWrite:
    """A legal move in the name of a live process.

    Args:
        scribe: Writes with the victim's broker id and incarnation.
        copied: An id of the victim's own, to be used again; None: an id that it has never written.
    """
    namespace = rng.choice(namespaces)
    chosen, move = pick_move(rng, view, namespace, brokers, bundles=4, splits=True, deletion=False)
    name = chosen if isinstance(chosen, str) else chosen.name
    version = 0 if isinstance(chosen, str) else chosen.version
    base = None if isinstance(chosen, str) else chosen.accepted_id
    fields = scribe.head("proposal", view.applied) | {"version": version + 1, "base": base} | move
    if copied is not None:
        fields["id"] = copied
    return JunkWrite(f"forged {fields['state']} v{fields['version']}", name.encode(), encode(fields))


def _children(rng: Random, key: KeyState | None, *, is_namespace: bool) -> list[str]:
    whole = ["0x00000000_0xffffffff"]
    children = first_ring(rng, 4) if is_namespace or key is None else cut(rng, key.lower, key.upper) or whole
    roll = rng.random()
    if roll < 0.5:  # noqa: PLR2004
        return children
    if roll < 0.7:  # noqa: PLR2004
        return children[1:]
    return children[:1] if roll < 0.8 else [*children, children[-1]]  # noqa: PLR2004


def broken(rng: Random, view: View, namespaces: Sequence[str]) -> JunkWrite:
    """A value that is not a record, a key without an owner, or a null where none belongs."""
    name, _ = _some_key(rng, view, namespaces)
    roll = rng.random()
    if roll < 0.5:  # noqa: PLR2004
        return JunkWrite("undecodable", name.encode(), rng.choice(UNDECODABLE))
    if roll < 0.65:  # noqa: PLR2004
        return JunkWrite("odd key", rng.choice(ODD_KEYS), rng.choice((*UNDECODABLE, None)))
    if roll < 0.8:  # noqa: PLR2004
        return JunkWrite("control junk", rng.choice(CONTROL_KEYS), rng.choice(UNDECODABLE))
    return JunkWrite("null", name.encode(), None)


def loser(rng: Random, view: View, scribe: Scribe) -> JunkWrite | None:
    """What lost a race: a move at the version that was accepted, by one who had not seen that; None where nothing has moved."""
    raced = [key for key in view.live() if not key.derived and key.state in (State.ASSIGNING, State.ASSIGNED)]
    if not raced:
        return None
    key = rng.choice(raced)
    fields = scribe.head("proposal", key.offset - 1) | {"version": key.version, "base": "lost", "state": key.state}
    return JunkWrite(f"loser v{key.version}", key.name.encode(), encode(fields | {"from": key.from_, "to": "x"}))


def false_mark(rng: Random, end: int, incarnation: str) -> JunkWrite:
    """Something on the key of the marks of cold starts: bytes that are none, a stranger's mark, or one that is void.

    Args:
        end: Of the partition.
        incarnation: Of a process that has written a heartbeat, and could have written a mark.
    """
    roll = rng.random()
    if roll < 0.5:  # noqa: PLR2004
        return JunkWrite("mark-like junk", COLD_START_KEY, rng.choice((*UNDECODABLE, b'{"through":"3"}', None)))
    through, writer = end - 1, "i9"
    if roll < 0.8:  # noqa: PLR2004
        through, writer = -1, incarnation  # void: whoever speaks has spoken since
    mark = {"through": through, "by": {"broker": "x", "incarnation": writer}}
    return JunkWrite(f"mark through {through} by {writer}", COLD_START_KEY, encode(mark))


def newer_format(rng: Random, namespaces: Sequence[str]) -> JunkWrite:
    """A record of a later version: every reader stops here."""
    return JunkWrite(
        "newer format", rng.choice(namespaces).encode(), b'{"format":2,"state":"' + State.ACTIVE.encode() + b'"}'
    )
