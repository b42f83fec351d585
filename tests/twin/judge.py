"""A caught-up reader, naively: the whole history is kept and walked for every question."""

# ruff: noqa: SIM114  (one line per line of the normative page)
from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, field
from typing import Any

from tests.twin import wire
from tests.twin.wire import Key, Line, Record


@dataclass(frozen=True)
class State:
    """The accepted state of one key."""

    version: int
    state: str
    source: str | None
    to: str | None
    id: str | None
    children: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Verdict:
    """What the reader says of one record; version and state are the record's own."""

    line: Line
    verdict: str
    version: int | None
    state: str | None


@dataclass(frozen=True)
class Event:
    """One record that counts for the debt of its key."""

    offset: int
    clean: bool
    covers: float
    version: int


@dataclass(frozen=True)
class Debt:
    """An open debt as the audit lists it."""

    key: str
    since_offset: int
    newest_offset: int
    highest_version: int


@dataclass
class Ledger:
    """What the events of one key come to."""

    settled: int | None = None
    newest_unclean: int | None = None
    highest_unclean: int = -1
    since: int | None = None


def derived(record: State, key: str) -> State:
    """Return the state that an Active namespace or a committed split gives the child `key`."""
    child_id = f"{record.id}/{key.rsplit('/', 1)[1]}"
    if record.state == "Active":
        return State(record.version, "Unassigned", None, None, child_id)
    return State(record.version + 1, "Assigned", None, record.source, child_id)


def has_children(key: str, state: State) -> bool:
    """Whether the ring goes on below this key."""
    return state.state == ("Deleted" if key.count("/") == 2 else "Active")


def settle(events: list[Event], settled: int | None) -> Ledger:
    """Fold rule R3 over all events of one key."""
    ledger = Ledger(settled)
    for event in events:
        if not event.clean:
            ledger.newest_unclean = event.offset
            ledger.highest_unclean = max(ledger.highest_unclean, event.version)
        else:
            reaches = ledger.settled is None or event.covers >= ledger.settled
            beyond = (
                ledger.newest_unclean is None
                or event.covers >= ledger.newest_unclean
                or event.version > ledger.highest_unclean
            )
            if reaches and beyond:
                ledger = Ledger(event.offset)
                continue
        if ledger.since is None:
            ledger.since = event.offset
    return ledger


@dataclass
class Judge:
    """Judges the records of one partition in order.

    Args:
        partition: the partition read.
        partitions: how many the topic has.
        start: the accepted states to start from (a joiner's, at `clean_to`); else nothing.
        settled: the offset that settled each key before the start.
    """

    partition: int
    partitions: int
    start: dict[str, State] = field(default_factory=dict)
    settled: dict[str, int] = field(default_factory=dict)
    accepted: dict[str, list[tuple[int, State]]] = field(default_factory=dict)
    events: dict[str, list[Event]] = field(default_factory=dict)
    verdicts: list[Verdict] = field(default_factory=list)
    stopped: tuple[int, int] | None = None
    _walked: dict[str, dict[str, State]] = field(default_factory=dict)

    def read(self, line: Line) -> Verdict | None:
        """Judge one record; None if judging has stopped before it."""
        if self.stopped:
            return None
        key = wire.read_key(line.key)
        record = wire.decode(line.key, line.value)
        reason = self._judge(key, record, line)
        verdict = Verdict(line, reason, None, None)
        if record is not None and record.kind != "heartbeat" and key.kind != "control":
            verdict = Verdict(line, reason, record.version, record.state)
        if reason == "unsupported-format":
            verdict = Verdict(line, reason, None, None)
        self.verdicts.append(verdict)
        return verdict

    def _judge(self, key: Key, record: Record | None, line: Line) -> str:
        if key.kind == "control":
            return "control"
        newer = wire.newer_format(line.value)
        if newer is not None:
            self.stopped = (line.offset, newer)
            return "unsupported-format"
        if key.kind == "unknown":
            return "purged" if line.value is None else "undecodable"
        if wire.home(key.namespace, self.partitions) != self.partition:
            return "wrong-partition"
        verdict = self._own_key(key, record, line)
        clean = verdict in ("purged", "assert-equal", "accepted")
        covers: float = record.covers if record else math.inf if verdict == "purged" else -1
        version = record.version if record else -1
        self.events.setdefault(key.text, []).append(Event(line.offset, clean, covers, version))
        return verdict

    def _own_key(self, key: Key, record: Record | None, line: Line) -> str:
        held = self.walk(key.namespace).get(key.text)
        if line.value is None and held is None and self.ledger(key.text).since is None:
            return "purged"
        if record is None:
            return "undecodable"
        if record.kind == "assert":
            return "assert-equal" if self._equal(key, record, held) else "assert-stale"
        verdict = self._proposal(key, record, held)
        if verdict == "accepted":
            new = State(record.version, record.state, record.source, record.to, record.id, record.children)
            self.accepted.setdefault(key.text, []).append((line.offset, new))
            self._walked.pop(key.namespace, None)
        return verdict

    @staticmethod
    def _equal(key: Key, record: Record, held: State | None) -> bool:
        if record.state == "Absent":
            return held is None and record.version == 0 and record.refers is None
        if held is None:
            return False
        asserted = State(record.version, record.state, record.source, record.to, record.refers, record.children)
        return asserted == held

    def _proposal(self, key: Key, record: Record, held: State | None) -> str:
        is_namespace = key.kind == "namespace"
        if held is not None and record.id == held.id:
            return "duplicate"
        if held is None and not (is_namespace and record.state == "Active"):
            return "unknown-bundle"
        lowest, highest = self._expected(key, record, held)
        if record.version < lowest:
            return "stale-version"
        if record.version > highest:
            return "version-gap"
        if record.refers != (held.id if held else None):
            return "wrong-base"
        if is_namespace:
            return self._namespace_move(key, record, held)
        if held is None:
            raise AssertionError("a bundle that does not exist got past unknown-bundle")
        return bundle_move(key, record, held)

    def _expected(self, key: Key, record: Record, held: State | None) -> tuple[int, float]:
        """Return the lowest and the highest version that will do."""
        if held is None:
            return 1, math.inf
        if key.kind == "namespace" and record.state == "Deleted" and held.state == "Active":
            versions = [state.version for state in self.live(key.namespace).values()]
            version = 1 + max([held.version, *versions])
            return version, version
        return held.version + 1, held.version + 1

    def _namespace_move(self, key: Key, record: Record, held: State | None) -> str:
        before = held.state if held else "nothing"
        if record.forced:
            return "illegal-move"
        if before in ("nothing", "Deleted") and record.state == "Active":
            covered = wire.covers_exactly(record.children or (), wire.RING)
            return "accepted" if covered else "bad-children"
        if before == "Active" and record.state == "Deleted":
            live = self.live(key.namespace).values()
            idle = all(state.state == "Unassigned" for state in live)
            return "accepted" if idle else "namespace-in-use"
        return "illegal-move"

    # What is accepted --------------------------------------------------------------------

    def walk(self, namespace: str) -> dict[str, State]:
        """Return the accepted state of every key of `namespace`, walking its tree."""
        if namespace not in self._walked:
            self._walked[namespace] = self._walk(namespace)
        return self._walked[namespace]

    def _walk(self, namespace: str) -> dict[str, State]:
        found: dict[str, State] = {}
        # Each entry: a key, what its parent derives for it and at which offset, and whether
        # the parent is still the one that the start knew.
        todo: list[tuple[str, State | None, int, bool]] = [(namespace, None, -1, True)]
        while todo:
            key, state, since, old = todo.pop()
            own = [entry for entry in self.accepted.get(key, []) if entry[0] > since]
            if own:
                since, state = own[-1]
                old = False
            elif old and key in self.start:
                state = self.start[key]
            if state is None:
                continue
            found[key] = state
            if has_children(key, state):
                for child in state.children or ():
                    child_key = f"{namespace}/{child}"
                    todo.append((child_key, derived(state, child_key), since, old))
        return found

    def namespaces(self) -> list[str]:
        """Return every namespace key that has an accepted state."""
        keys = {*self.accepted, *self.start}
        return sorted(key for key in keys if key.count("/") == 1)

    def states(self) -> dict[str, State]:
        """Return the accepted state of every key of the partition."""
        return {key: state for name in self.namespaces() for key, state in self.walk(name).items()}

    def live(self, namespace: str) -> dict[str, State]:
        """Return the live bundles of `namespace`."""
        return live_bundles(self.walk(namespace))

    # Debts -------------------------------------------------------------------------------

    def ledger(self, key: str) -> Ledger:
        """Fold all that happened on `key`."""
        return settle(self.events.get(key, []), self.settled.get(key))

    def debts(self) -> list[Debt]:
        """Return the open debts, sorted by key."""
        open_debts = []
        for key in sorted(self.events):
            ledger = self.ledger(key)
            if ledger.since is None:
                continue
            newest = ledger.newest_unclean if ledger.newest_unclean is not None else ledger.settled
            if newest is None:
                raise AssertionError("a clean record that nothing stood against did not settle")
            open_debts.append(Debt(key, ledger.since, newest, ledger.highest_unclean))
        return open_debts


def bundle_move(key: Key, record: Record, held: State) -> str:
    """Judge the move of a bundle whose version and base fit."""
    source, to = record.source, record.to
    move = (held.state, record.state)
    if record.forced:
        if held.state == "Deleted" or record.state not in ("Unassigned", "Assigning"):
            return "illegal-move"
        fits = (to is None) if record.state == "Unassigned" else (to is not None)
        return "accepted" if fits else "wrong-broker"
    if move == ("Unassigned", "Assigning"):
        fits = source is None and to is not None
    elif move == ("Assigning", "Assigned"):
        fits = source == held.source and to == held.to
    elif move == ("Assigning", "Unassigned"):
        fits = source == held.to and to is None
    elif move == ("Assigned", "Assigned"):
        fits = source is None and to == held.to
    elif move == ("Assigned", "Releasing"):
        fits = source == held.to and (to is None or to != source)
    elif move == ("Assigned", "Splitting"):
        fits = source == held.to and to is None
    elif move == ("Releasing", "Assigning") and held.to is not None:
        fits = source == held.source and to == held.to
    elif move == ("Releasing", "Unassigned") and held.to is None:
        fits = source == held.source and to is None
    elif move == ("Splitting", "Deleted"):
        fits = source == held.source and to is None
    elif move in (("Splitting", "Assigned"), ("Releasing", "Assigned")):
        fits = source is None and to == held.source
    else:
        return "illegal-move"
    if not fits:
        return "wrong-broker"
    if record.state == "Deleted" and not split_covers(key, record):
        return "bad-children"
    return "accepted"


def split_covers(key: Key, record: Record) -> bool:
    """Whether a split's children, two or more, cover the bundle."""
    children = record.children or ()
    return len(children) >= 2 and wire.covers_exactly(children, wire.bounds(key.range))


def live_bundles(states: dict[str, State]) -> dict[str, State]:
    """Return the leaves of the ring among `states`."""
    return {key: state for key, state in states.items() if key.count("/") == 2 and state.state != "Deleted"}


def digest(states: dict[str, State]) -> str:
    """Return the digest of all accepted states of a topic."""
    lines = []
    for key in sorted(states):
        held = states[key]
        row: list[Any] = [key, held.version, held.state, held.source, held.to, held.id]
        lines.append(json.dumps(row, separators=(",", ":")) + "\n")
    return hashlib.sha256("".join(lines).encode("ascii")).hexdigest()
