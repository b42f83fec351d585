"""Outages: no member is awake, the log ages and is cleaned, junk and late records come, and a process starts or wakes.

Where `search` has every log, and joins complete only where a heartbeat vouches for all of it, here heartbeats are in the log,
records have ages, the cleaner keeps to its lag, and readers wait, pause and start cold as `Replica` does. One bundle; each path
begins with a log of which a record may have been removed already. From `faults` on, what the log stands on may give way, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple

import orjson

from statechannel.engine.cold_start import ColdStart
from statechannel.engine.proposals import Proposals, Restating
from statechannel.protocol.codec import COLD_START_KEY, HEAD_KEY, HEARTBEAT_KEY
from statechannel.protocol.keys import KeyState
from statechannel.protocol.replica import Phase, Replica
from statechannel.protocol.states import State
from statechannel.protocol.view import View
from tests.explorer.paths import (
    NO_RECORD,
    OTHER_DIGEST,
    Entry,
    Path,
    Point,
    Session,
    is_bent,
    read,
    removable,
    restated_at,
    sessions_of,
    subsets,
    truth_of,
    vouches,
)
from tests.explorer.readers import states_of
from tests.explorer.world import JUNK_BASE, LOW, RING, ROOT, Claim, Letter, heartbeat, restate, write
from tests.mutants import planted

AGE = "half a lag passes"
BEGINS = "a cold start takes its view"
LANDS = "its records are appended"
WAKES = "a member wakes"
MARKER, DELETION, ADDITION, DISAGREEMENT, OLDER = (
    "a transaction ends",
    "records are deleted from the head",
    "partitions are added",
    "a member that holds other states vouches",
    "a member of an older version vouches",
)
FAULTS = frozenset((MARKER, DELETION, ADDITION, DISAGREEMENT, OLDER))
"""What the log stands on gives way, or members cannot compare; each comes once in a path.

Members of older versions count partitions as Kafka does: beside them none are added.
"""
KAFKAS_NUMBER = 3
"""Of partitions, once some were added: by it the namespace belongs in another one."""
CHUNK = 50
"""Paths that a worker continues at a time."""


class Property(StrEnum):
    """What must hold."""

    STATES = "a member holds other accepted states than the reader of the whole log"
    COLD_START = "a cold start changes what was accepted, though the log was vouched for"
    WAITS = "the log vouches for itself, and a member waits all the same"
    OVERTURNED = "a cold start overturns the history of a member that has written since"
    GENERATIONS = "a cold start goes on at a version that was accepted before"
    HISTORIES = "two processes act on two histories"
    READS = "a member does not read to the end"
    RESTARTS = "a member that kept up starts over for a gap that cannot be compaction"
    HEADLESS = "a member joins a log whose head was deleted before a mark restates it"
    UNNOTICED = "a member does not notice that another one holds other states"


class Wrong(NamedTuple):
    """What is wrong at the end of a path."""

    path: Path
    session: Session
    what: Property


@dataclass(slots=True)
class Tally:
    """What was tried.

    Attributes:
        sessions: Readers that were compared; `joined` of them had caught up.
        starts: Starts after an outage, by how they went.
    """

    paths: int = 0
    sessions: int = 0
    joined: int = 0
    starts: Counter[str] = field(default_factory=Counter)
    wrong: Wrong | None = None

    def merge(self, other: Tally) -> None:
        """Add what another worker tried."""
        self.paths += other.paths
        self.sessions += other.sessions
        self.joined += other.joined
        self.starts += other.starts
        self.wrong = self.wrong or other.wrong


# --- events -------------------------------------------------------------------------------------------------------------


def begin() -> Path:
    """The bundle was given to a broker long ago; the record before that may be gone. A member lives."""
    path = Path(points=(Point(0, 0),))
    path = path.after("create", write(ROOT, "r0", -1, version=1, base=None, state=State.ACTIVE, children=RING))
    for _ in range(2):
        path = path.after("move", _move(path, truth_of(path.log).view))
    path = path.after("heartbeat", heartbeat(len(path.log) - 1))
    path = replace(path, now=2)
    return replace(path, events=(), points=(Point(len(path.log), 2),))


def begin_abandoned() -> Path:
    """A rejected record came, no member has been awake since, and half a lag has passed."""
    path = begin()
    offset, view = len(path.log), truth_of(path.log).view
    path = path.after("junk", write(LOW, f"r{offset}", offset - 1, version=view.keys[LOW].version + 3, **JUNK))
    path = path.after("no member is awake", alive=False, ended=True)
    path = path.after(AGE, now=path.now + 1)
    return replace(path, events=())


def begin_faults() -> Path:
    """As `begin`; heartbeats name what their writers hold, and what the log stands on may give way."""
    path = replace(begin(), faults=FAULTS)
    log, last = path.log[:-1], path.log[-1]
    beat = path.beat(truth_of(log).view, len(log) - 1)
    return replace(path, log=(*log, last._replace(value=beat.value)))


START: Mapping[str, Callable[[], Path]] = {"awake": begin, "abandoned": begin_abandoned, "faults": begin_faults}
"""With what a search may begin."""
JUNK: Mapping[str, Any] = {"base": JUNK_BASE, "state": State.ASSIGNED, "from": None, "to": "z"}


ABOVE_ALL = 1_000
"""A version that no cold start raises a bundle to."""


def _move(path: Path, view: View, covers: int | None = None) -> Letter:
    key = view.keys[LOW]
    offset = len(path.log)
    head = {"version": key.version + 1, "base": key.accepted_id}
    moves: dict[State, dict[str, Any]] = {
        State.UNASSIGNED: {"state": State.ASSIGNING, "from": None, "to": "a"},
        State.ASSIGNING: {"state": State.ASSIGNED, "from": key.from_, "to": key.to},
        State.ASSIGNED: {"state": State.ASSIGNED, "from": None, "to": key.to},
    }
    fields = moves[key.state or State.UNASSIGNED]
    return write(LOW, f"r{offset}", offset - 1 if covers is None else covers, **head, **fields)


def follow(path: Path, tally: Tally) -> Iterator[Path]:
    """Every path with one more event."""
    view = truth_of(path.log).view
    offset, low = len(path.log), view.keys.get(LOW)
    if low is None or low.state is None:
        return
    if path.pending:
        yield _land(path, view)
    yield from _unasked(path, view, low)
    yield from _faults(path, view)
    if path.alive:
        yield path.after("move", _move(path, view), answered=True)
        yield path.after("heartbeat", path.beat(view, offset - 1), answered=True)
        if low in view.ledger.open:
            yield path.after("assert", restate(LOW, f"r{offset}", Claim.of(low, offset - 1)), answered=True)
        if not path.ended:
            yield path.after("no member is awake", alive=False, ended=True)
    elif path.ended:
        yield _wake(path, view)
        if not path.pending:
            yield from _starts(path, view, tally)


def _unasked(path: Path, view: View, low: KeyState) -> Iterator[Path]:
    """Time passes, and records come that no member that is awake writes."""
    offset = len(path.log)
    yield path.after("junk", write(LOW, f"r{offset}", offset - 1, version=low.version + 3, **JUNK))
    yield path.after("old junk", write(LOW, f"r{offset}", -1, version=1, **JUNK))
    yield path.after("late move", _move(path, view, covers=-1))
    beats = [entry for entry in path.log if entry.key == HEARTBEAT_KEY]
    if beats:
        yield path.after("late heartbeat", Letter(HEARTBEAT_KEY, beats[-1].value))
    marks = [entry for entry in path.log if entry.key == COLD_START_KEY]
    if marks:
        yield path.after("late mark", Letter(COLD_START_KEY, marks[-1].value))
    if path.events[-2:] != (AGE, AGE):
        yield path.after(AGE, now=path.now + 1)
    if path.pending:
        yield path.after("junk above all", write(LOW, f"r{offset}", offset - 1, version=ABOVE_ALL, **JUNK))


def _faults(path: Path, view: View) -> Iterator[Path]:
    """What the log stands on gives way; and what members do about it."""
    faults, offset = path.faults or frozenset(), len(path.log)
    if MARKER in faults:
        yield path.after(MARKER, NO_RECORD, faults=faults - {MARKER})
    if ADDITION in faults:
        yield path.after(ADDITION, partitions=KAFKAS_NUMBER, faults=faults - {ADDITION, OLDER})
    if not path.alive:
        return
    if DELETION in faults:
        for first in (1, offset):
            yield path.after(DELETION, first=first, faults=faults - {DELETION})
    elif path.first and restated_at(path, path.first) is None:
        yield path.after("what was deleted is restated", *_restate_head(path, view), answered=True)
    if view.ledger.open:
        return
    if DISAGREEMENT in faults:
        beat = path.beat(view, offset - 1, "v", digest=OTHER_DIGEST)
        yield path.after(DISAGREEMENT, beat, faults=faults - {DISAGREEMENT})
    if OLDER in faults:
        yield path.after(OLDER, heartbeat(offset - 1), answered=True, faults=faults - {OLDER, ADDITION})


def _restate_head(path: Path, view: View) -> Iterator[Letter]:
    through = len(path.log) - 1
    keys = [key for key in view.existing() if not key.derived and key.settled < path.first]
    if not is_bent(Restating, "go_on"):
        yield from (restate(key.key, f"h{place}", Claim.of(key, through)) for place, key in enumerate(keys))
    mark = {"through": through, "first": path.first, "known": -1, "by": {"broker": "w", "incarnation": "w-1"}}
    yield Letter(HEAD_KEY, orjson.dumps(mark))


def _wake(path: Path, view: View) -> Path:
    """A member was paused, reads what has come since, and says so before it writes anything else."""
    if path.acting is not None and path.acting != states_of(view):
        raise _WrongError(Wrong(path.after(WAKES), Session(path.points[-1], frozenset()), Property.HISTORIES))
    if is_bent(Proposals, "_send"):
        return path.after(WAKES, alive=True)
    return path.after(WAKES, path.beat(view, len(path.log) - 1), alive=True, answered=True)


def _land(path: Path, view: View) -> Path:
    """The records of a cold start are appended. Its process goes on if its mark counts, and joins like others if not."""
    landed = path.after(LANDS, *path.pending, pending=(), acting=None)
    truth = truth_of(landed.log)
    if truth.marks.newest != len(landed.log) - 1:
        return landed
    if path.answered and states_of(truth.view) != states_of(view):
        raise _WrongError(Wrong(landed, Session(path.points[-1], frozenset()), Property.OVERTURNED))
    return path.after(
        LANDS, *path.pending, path.beat(truth.view, len(landed.log) - 1, "c"), pending=(), acting=None, alive=True
    )


def _starts(path: Path, view: View, tally: Tally) -> Iterator[Path]:
    """A process starts: on the word of the log, or cold. What the cleaner has left decides what it takes for the truth."""
    seen: set[object] = set()
    for removed in subsets(removable(path.log, path.points[-1])):
        session = Session(path.points[-1], removed)
        replica = read(path, session)
        if replica is None:
            continue
        if replica.caught_up:
            how = "strict" if replica.strict else "on the word of the log"
            tally.starts[how] += 1
            if "joined" not in seen:
                seen.add("joined")
                yield path.after("a process starts", alive=True)
            continue
        if replica.phase is not Phase.WAITING:
            raise _WrongError(Wrong(path, session, Property.READS))
        if replica.is_headless:
            tally.starts["none without the head"] += 1
            continue
        tally.starts["cold"] += 1
        names = replica.assume()
        assumed = states_of(replica.view)
        is_changed = _without_versions(assumed) != _without_versions(states_of(view))
        may_change = DISAGREEMENT in path.events or (_nothing_clean(path) and view.ledger.open)
        if is_changed and not may_change:
            raise _WrongError(Wrong(path, session, Property.COLD_START))
        if is_changed and replica.view.keys[LOW].version <= view.keys[LOW].version:
            raise _WrongError(Wrong(path.after(BEGINS), session, Property.GENERATIONS))
        if (signature := repr(sorted(assumed.items()))) in seen:
            continue
        seen.add(signature)
        letters = _cold_records(path, replica, names)
        yield path.after("a process starts", *letters, _first_beat(path, letters), alive=True)
        acting = assumed if is_bent(ColdStart, "_continue") else None
        yield path.after(BEGINS, pending=letters, acting=acting, answered=False)


def _first_beat(path: Path, letters: Sequence[Letter]) -> Letter:
    """Of a process whose cold start is in the log: it vouches for what it has taken for the truth."""
    through = len(path.log) + len(letters) - 1
    if path.faults is None:
        return heartbeat(through, "c")
    truth = truth_of((*path.log, *(Entry(*letter, path.now) for letter in letters)))
    return path.beat(truth.view, through, "c")


def _without_versions(states: Mapping[bytes, Any]) -> dict[bytes, object]:
    """A cold start raises the versions of bundles, and leaves their states."""
    return {key: (state[0], *state[2:-1]) for key, state in states.items()}


def _nothing_clean(path: Path) -> bool:
    """Whether nobody was there for longer than half the lag, or nothing was clean in its last half (section 8)."""
    for offset, entry in enumerate(path.log):
        clean_to = orjson.loads(entry.value or b"{}").get("clean_to", -1) if entry.key == HEARTBEAT_KEY else -1
        if 0 <= clean_to < offset and all(later.at == path.now for later in path.log[clean_to + 1 :]):
            return False
    return True


def _cold_records(path: Path, replica: Replica, names: Sequence[str]) -> tuple[Letter, ...]:
    through = len(path.log) - 1
    letters = [
        restate(name.encode(), f"c{place}", Claim.of(_state(replica.view, name), through), writer="c")
        for place, name in enumerate(names)
    ]
    mark = {"through": through, "by": {"broker": "c", "incarnation": "c-1"}}
    return (*letters, Letter(COLD_START_KEY, orjson.dumps(mark)))


def _state(view: View, name: str) -> KeyState | None:
    return view.keys.get(name.encode())


# --- search -------------------------------------------------------------------------------------------------------------


class _WrongError(Exception):
    pass


def check(path: Path, tally: Tally, properties: Collection[Property]) -> None:
    """Compare all readers at the end of a path."""
    truth = truth_of(path.log).view
    expected = states_of(truth)
    now = path.points[-1]
    for session in sessions_of(path):
        tally.sessions += 1
        replica = read(path, session)
        waits = session.opened == now and (replica is None or not replica.caught_up)
        if Property.WAITS in properties and waits and vouches(path, session):
            raise _WrongError(Wrong(path, session, Property.WAITS))
        if replica is not None and replica.phase is Phase.START_OVER:
            raise _WrongError(Wrong(path, session, Property.RESTARTS))
        if replica is None or not replica.caught_up:
            continue
        tally.joined += 1
        if session.opened.first and restated_at(path, session.opened.first) is None:
            raise _WrongError(Wrong(path, session, Property.HEADLESS))
        if states_of(replica.view) != expected:
            raise _WrongError(Wrong(path, session, Property.STATES))
        if path.events[-1] == DISAGREEMENT and not _notices(path, session, replica):
            raise _WrongError(Wrong(path, session, Property.UNNOTICED))


def _notices(path: Path, session: Session, replica: Replica) -> bool:
    """Whether a reader knows of the member that has just vouched; one that has read its heartbeat before it joined need not."""
    compared = replica.compared.get("v")
    return (compared is not None and not compared.is_equal) or (replica.strict and session.opened.end == len(path.log))


def replay(start: str, events: Sequence[str]) -> Property | None:
    """What is wrong after these events, in any of the ways in which they may happen; None if nothing."""
    paths = [START[start]()]
    try:
        for number in range(1, len(events) + 1):
            paths = [
                longer for path in paths for longer in follow(path, Tally()) if longer.events == tuple(events[:number])
            ]
            for path in paths:
                check(path, Tally(), tuple(Property))
    except _WrongError as wrong:
        return wrong.args[0].what  # type: ignore[no-any-return]
    return None


def extend(paths: Sequence[Path], properties: Collection[Property], without: str = "") -> tuple[list[Path], Tally]:
    """Every path with one more event; the tally has the first one with which something is wrong.

    Args:
        without: A planted bug that takes a rule away.
    """
    after: list[Path] = []
    tally = Tally()
    with planted(without) if without else nullcontext():
        for path in paths:
            try:
                for longer in follow(path, tally):
                    tally.paths += 1
                    check(longer, tally, properties)
                    after.append(longer)
            except _WrongError as wrong:
                tally.wrong = wrong.args[0]
                break
    return after, tally


def explore(
    depth: int,
    executor: Executor | None = None,
    *,
    properties: Collection[Property] = tuple(Property),
    without: str = "",
    start: str = "awake",
) -> Iterator[Tally]:
    """All paths of one event, then of two, and so on; ends with the first at the end of which something is wrong."""
    paths = [START[start]()]
    for _ in range(depth):
        chunks = [paths[index : index + CHUNK] for index in range(0, len(paths), CHUNK)]
        tally, paths = Tally(), []
        run = map if executor is None else executor.map
        for after, part in run(partial(extend, properties=properties, without=without), chunks):
            paths += after
            tally.merge(part)
            if part.wrong is not None:
                break
        yield tally
        if tally.wrong is not None:
            return
