"""Outages: no member is awake, the log ages and is cleaned, junk and late records come, and a process starts or wakes.

Where `search` has every log, and joins complete only where a heartbeat vouches for all of it, here heartbeats are in the log,
records have ages, the cleaner keeps to its lag, and readers wait, pause and start cold as `Replica` does. One bundle; each path
begins with a log of which a record may have been removed already.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from itertools import combinations
from typing import Any, NamedTuple

import orjson

from statechannel.engine.cold_start import ColdStart
from statechannel.engine.proposals import Proposals
from statechannel.protocol.codec import COLD_START_KEY, HEARTBEAT_KEY
from statechannel.protocol.keys import KeyState
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.replica import Phase, Replica
from statechannel.protocol.states import State
from statechannel.protocol.view import View
from tests.explorer.readers import states_of
from tests.explorer.world import JUNK_BASE, LOW, RING, ROOT, Claim, Letter, heartbeat, restate, write
from tests.mutants import planted
from tests.twin.vouching import Joined, join
from tests.twin.wire import Line

LAG_S = 7_200.0
TICK_S = LAG_S / 2 + 1
"""A record is as old as half the lag after one tick, and may take part in cleaning after two."""
AGE = "half a lag passes"
BEGINS = "a cold start takes its view"
LANDS = "its records are appended"
WAKES = "a member wakes"
CHUNK = 50
"""Paths that a worker continues at a time."""


def _is_bent(owner: type, name: str) -> bool:
    return owner.__dict__[name] is not _ENGINES[owner, name]


_ENGINES = {
    (owner, name): owner.__dict__[name]
    for owner, name in ((ColdStart, "_judge_marks"), (ColdStart, "_continue"), (Proposals, "_send"))
}
"""Where engines keep to rules about what processes write, and when. No engine runs here: where a planted bug has taken such a
rule away from them, the processes of this search do without it, too."""


class Entry(NamedTuple):
    """A record of the log, and the tick at which it was appended."""

    key: bytes
    value: bytes | None
    at: int


class Point(NamedTuple):
    """A moment: the end of the log, and the tick."""

    end: int
    now: int


class Session(NamedTuple):
    """A reader: when it opened the log, what was removed by then, and whether it was paused.

    Attributes:
        paused: What was written after this moment it reads only at the end of the path.
        removed: Offsets, at both readings.
    """

    opened: Point
    removed: frozenset[int]
    paused: Point | None = None


@dataclass(frozen=True, slots=True)
class Path:
    """What has happened.

    Attributes:
        points: The moment after each event, the first one included.
        alive: A caught-up member is there, which has read everything.
        ended: There was an outage: a path has one.
        pending: Asserts and mark of a cold start that has taken its view, and whose records are not in the log yet.
        acting: States on which its process acts already; None as long as it acts on none.
        answered: A member that is awake has written since then.
    """

    events: tuple[str, ...] = ()
    log: tuple[Entry, ...] = ()
    points: tuple[Point, ...] = ()
    now: int = 0
    alive: bool = True
    ended: bool = False
    pending: tuple[Letter, ...] = ()
    acting: Mapping[bytes, object] | None = None
    answered: bool = False

    def after(self, event: str, *letters: Letter, **changes: Any) -> Path:
        """With one more event, which appends these records."""
        path = replace(self, **changes)
        log = (*path.log, *(Entry(*letter, path.now) for letter in letters))
        point = Point(len(log), path.now)
        return replace(path, events=(*path.events, event), log=log, points=(*path.points, point))


class Property(StrEnum):
    """What must hold."""

    STATES = "a member holds other accepted states than the reader of the whole log"
    COLD_START = "a cold start changes what was accepted, though the log was vouched for"
    WAITS = "the log vouches for itself, and a member waits all the same"
    OVERTURNED = "a cold start overturns the history of a member that has written since"
    GENERATIONS = "a cold start goes on at a version that was accepted before"
    HISTORIES = "two processes act on two histories"
    READS = "a member does not read to the end"


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


# --- readers ------------------------------------------------------------------------------------------------------------


def removable(log: Sequence[Entry], point: Point, first: int = 0) -> list[int]:
    """Offsets that the cleaner may have removed: a later record of the key is older than the lag."""
    aged = [offset for offset in range(point.end) if log[offset].at <= point.now - 2]
    return [
        offset
        for offset in range(first, point.end)
        if any(later > offset and log[later].key == log[offset].key for later in aged)
    ]


def subsets(offsets: Sequence[int]) -> Iterator[frozenset[int]]:
    """All of them, the empty one first."""
    for count in range(len(offsets) + 1):
        yield from (frozenset(some) for some in combinations(offsets, count))


def sessions_of(path: Path) -> Iterator[Session]:
    """Every reader of this path: opened at any moment, paused once or never."""
    end = path.points[-1]
    for index, opened in enumerate(path.points):
        for removed in subsets(removable(path.log, opened)):
            yield Session(opened, removed)
            for paused in path.points[index:-1]:
                for later in subsets(removable(path.log, end, paused.end)):
                    if later:
                        yield Session(opened, removed | later, paused)


def read(path: Path, session: Session) -> Replica | None:
    """The reader at the end of the path; None if it has to begin again from there, which is a session of its own."""
    replica = Replica(0, 1, compaction_lag_s=LAG_S, kept_records_max=1_000)
    opened, removed, paused = session
    replica.learn_clock(0.0)
    now_s = opened.now * TICK_S
    _read_to_end(replica, path, session)
    if replica.phase is Phase.START_OVER:
        _read_to_end(replica, path, session)
    for offset, entry in enumerate(path.log[opened.end :], opened.end):
        if offset in removed:
            continue
        late = paused is not None and offset >= paused.end
        now_s = max(now_s, (path.now if late else entry.at) * TICK_S)
        judged = replica.caught_up
        replica.read(now_s, _record(path.log, offset))
        if judged and replica.marks.newest == offset and not _is_bent(ColdStart, "_judge_marks"):
            return None
    replica.reached(path.now * TICK_S, len(path.log))
    return None if replica.phase is Phase.START_OVER else replica


def _read_to_end(replica: Replica, path: Path, session: Session) -> None:
    now_s, end = session.opened.now * TICK_S, session.opened.end
    replica.opened(now_s, 0, end)
    for offset in range(end):
        if offset not in session.removed:
            replica.read(now_s, _record(path.log, offset))
    replica.reached(now_s, end)


def _record(log: Sequence[Entry], offset: int) -> RecordRead:
    key, value, at = log[offset]
    return RecordRead(Topic.CHANNEL, 0, offset, _ms(at), key, value)


def truth_of(log: Sequence[Entry]) -> Replica:
    """The reader of the whole log, from its beginning."""
    replica = Replica(0, 1, compaction_lag_s=LAG_S, kept_records_max=1_000)
    replica.opened(0.0, 0, len(log))
    for offset in range(len(log)):
        replica.read(0.0, _record(log, offset))
    return replica


def vouches(path: Path, session: Session) -> bool:
    """Whether the log needs no further heartbeat, by the twin's reading of the page; for a reader that begins now."""
    lines = [
        Line(0, offset, _ms(entry.at), entry.key, entry.value)
        for offset, entry in enumerate(path.log)
        if offset not in session.removed
    ]
    now_ms = _ms(path.now)
    return isinstance(join(lines, len(path.log), now_ms, round(LAG_S * 500), read_ms=now_ms), Joined)


def _ms(tick: int) -> int:
    return round(tick * TICK_S * 1000)


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


START: Mapping[str, Callable[[], Path]] = {"awake": begin, "abandoned": begin_abandoned}
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
    if path.alive:
        clean_to = -1 if view.ledger.open else offset - 1
        yield path.after("move", _move(path, view), answered=True)
        yield path.after("heartbeat", heartbeat(clean_to), answered=True)
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


def _wake(path: Path, view: View) -> Path:
    """A member was paused, reads what has come since, and says so before it writes anything else."""
    if path.acting is not None and path.acting != states_of(view):
        raise _WrongError(Wrong(path.after(WAKES), Session(path.points[-1], frozenset()), Property.HISTORIES))
    if _is_bent(Proposals, "_send"):
        return path.after(WAKES, alive=True)
    return path.after(WAKES, heartbeat(-1 if view.ledger.open else len(path.log) - 1), alive=True, answered=True)


def _land(path: Path, view: View) -> Path:
    """The records of a cold start are appended. Its process goes on if its mark counts, and joins like others if not."""
    landed = path.after(LANDS, *path.pending, pending=(), acting=None)
    truth = truth_of(landed.log)
    if truth.marks.newest != len(landed.log) - 1:
        return landed
    if path.answered and states_of(truth.view) != states_of(view):
        raise _WrongError(Wrong(landed, Session(path.points[-1], frozenset()), Property.OVERTURNED))
    return path.after(
        LANDS,
        *path.pending,
        heartbeat(-1 if truth.view.ledger.open else len(landed.log) - 1, "c"),
        pending=(),
        acting=None,
        alive=True,
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
        tally.starts["cold"] += 1
        names = replica.assume()
        assumed = states_of(replica.view)
        is_changed = _without_versions(assumed) != _without_versions(states_of(view))
        if is_changed and (not _nothing_clean(path) or not view.ledger.open):
            raise _WrongError(Wrong(path, session, Property.COLD_START))
        if is_changed and replica.view.keys[LOW].version <= view.keys[LOW].version:
            raise _WrongError(Wrong(path.after(BEGINS), session, Property.GENERATIONS))
        if (signature := repr(sorted(assumed.items()))) in seen:
            continue
        seen.add(signature)
        letters = _cold_records(path, replica, names)
        yield path.after("a process starts", *letters, heartbeat(len(path.log) + len(letters) - 1, "c"), alive=True)
        acting = assumed if _is_bent(ColdStart, "_continue") else None
        yield path.after(BEGINS, pending=letters, acting=acting, answered=False)


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
        if replica is None or not replica.caught_up:
            continue
        tally.joined += 1
        if states_of(replica.view) != expected:
            raise _WrongError(Wrong(path, session, Property.STATES))


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
