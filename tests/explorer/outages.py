"""Outages: everybody dies, the log ages and is cleaned, junk and late records come, and a process starts.

Where `search` has every log, and joins complete only where a heartbeat vouches for all of it, here heartbeats are in the log,
records have ages, the cleaner keeps to its lag, and readers wait, pause and start cold as `Replica` does. One bundle; each path
begins with a log of which a record may have been removed already.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from itertools import combinations
from typing import Any, NamedTuple

import orjson

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
CHUNK = 50
"""Paths that a worker continues at a time."""


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
    """

    events: tuple[str, ...] = ()
    log: tuple[Entry, ...] = ()
    points: tuple[Point, ...] = ()
    now: int = 0
    alive: bool = True
    ended: bool = False

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
        if judged and replica.marks.newest == offset:
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
    return isinstance(join(lines, len(path.log), _ms(path.now), round(LAG_S * 500)), Joined)


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
    junk = {"base": JUNK_BASE, "state": State.ASSIGNED, "from": None, "to": "z"}
    if low is None or low.state is None:
        return
    yield path.after("junk", write(LOW, f"r{offset}", offset - 1, version=low.version + 3, **junk))
    yield path.after("old junk", write(LOW, f"r{offset}", -1, version=1, **junk))
    yield path.after("late move", _move(path, view, covers=-1))
    beats = [entry for entry in path.log if entry.key == HEARTBEAT_KEY]
    if beats:
        yield path.after("late heartbeat", Letter(HEARTBEAT_KEY, beats[-1].value))
    marks = [entry for entry in path.log if entry.key == COLD_START_KEY]
    if marks:
        yield path.after("late mark", Letter(COLD_START_KEY, marks[-1].value))
    if path.events[-2:] != (AGE, AGE):
        yield path.after(AGE, now=path.now + 1)
    if path.alive:
        yield path.after("move", _move(path, view))
        yield path.after("heartbeat", heartbeat(-1 if view.ledger.open else offset - 1))
        if low in view.ledger.open:
            yield path.after("assert", restate(LOW, f"r{offset}", Claim.of(low, offset - 1)))
        if not path.ended:
            yield path.after("all members die", alive=False, ended=True)
    elif path.ended:
        yield from _starts(path, view, tally)


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
        if assumed != states_of(view) and (not _nothing_clean(path) or not view.ledger.open):
            raise _WrongError(Wrong(path, session, Property.COLD_START))
        if (signature := repr(sorted(assumed.items()))) in seen:
            continue
        seen.add(signature)
        yield _started_cold(path, replica, names)


def _nothing_clean(path: Path) -> bool:
    """Whether nobody was there for longer than half the lag, or nothing was clean in its last half (section 8)."""
    for offset, entry in enumerate(path.log):
        clean_to = orjson.loads(entry.value or b"{}").get("clean_to", -1) if entry.key == HEARTBEAT_KEY else -1
        if 0 <= clean_to < offset and all(later.at == path.now for later in path.log[clean_to + 1 :]):
            return False
    return True


def _started_cold(path: Path, replica: Replica, names: Sequence[str]) -> Path:
    through = len(path.log) - 1
    letters = [
        restate(name.encode(), f"c{place}", Claim.of(_state(replica.view, name), through), writer="c")
        for place, name in enumerate(names)
    ]
    mark = {"through": through, "by": {"broker": "c", "incarnation": "c-1"}}
    letters.append(Letter(COLD_START_KEY, orjson.dumps(mark)))
    letters.append(heartbeat(len(path.log) + len(letters) - 1, "c"))
    return path.after("a process starts", *letters, alive=True)


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
) -> Iterator[Tally]:
    """All paths of one event, then of two, and so on; ends with the first at the end of which something is wrong."""
    paths = [begin()]
    for _ in range(depth):
        chunks = [paths[index : index + CHUNK] for index in range(0, len(paths), CHUNK)]
        tally, paths = Tally(), []
        run = map if executor is None else executor.map
        for after, part in run(partial(extend, properties=properties, without=without), chunks):
            paths += after
            tally.merge(part)
        yield tally
        if tally.wrong is not None:
            return
