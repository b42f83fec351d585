"""What has happened in a search over outages, and what readers make of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, NamedTuple

import orjson

from statechannel.engine.cold_start import ColdStart
from statechannel.engine.proposals import Proposals, Restating
from statechannel.protocol.codec import HEAD_KEY, HEARTBEAT_KEY
from statechannel.protocol.digest import ViewDigest
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.replica import Phase, Replica
from statechannel.protocol.view import View
from statechannel.sim import stage
from tests.explorer.world import Letter, heartbeat
from tests.twin.vouching import Joined, join
from tests.twin.wire import Line

LAG_S = 7_200.0
TICK_S = LAG_S / 2 + 1
"""A record is as old as half the lag after one tick, and may take part in cleaning after two."""
NO_RECORD = Letter(b"!transaction", None)
"""An offset that never held a record: no reader gets it, and for the reader of the whole log it means nothing."""
OTHER_DIGEST = "0" * 16
"""Named by a member that holds other states."""


def is_bent(owner: type, name: str) -> bool:
    return owner.__dict__[name] is not _ENGINES[owner, name]


_ENGINES = {
    (owner, name): owner.__dict__[name]
    for owner, name in (
        (ColdStart, "_judge_marks"),
        (ColdStart, "_continue"),
        (Proposals, "_send"),
        (Restating, "go_on"),
    )
}
"""Where engines keep to rules about what processes write, and when. No engine runs here: where a planted bug has taken such a
rule away from them, the processes of this search do without it, too."""


class Entry(NamedTuple):
    """A record of the log, and the tick at which it was appended."""

    key: bytes
    value: bytes | None
    at: int


class Point(NamedTuple):
    """A moment: the end of the log, the tick, the first offset of the log, and the number of partitions of its topic."""

    end: int
    now: int
    first: int = 0
    partitions: int = 1


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
        first: First offset of the log; `partitions`: their number in Kafka.
        faults: Those that may still come; None: none, and heartbeats are those of older versions, which name no states.
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
    first: int = 0
    partitions: int = 1
    faults: frozenset[str] | None = None

    def after(self, event: str, *letters: Letter, **changes: Any) -> Path:
        """With one more event, which appends these records."""
        path = replace(self, **changes)
        log = (*path.log, *(Entry(*letter, path.now) for letter in letters))
        point = Point(len(log), path.now, path.first, path.partitions)
        return replace(path, events=(*path.events, event), log=log, points=(*path.points, point))

    def beat(self, view: View, covers: int, writer: str = "w", **names: object) -> Letter:
        """A heartbeat of a member that holds this view, with these fields instead of what it names of it."""
        clean_to = -1 if view.ledger.open else covers
        if self.faults is None:
            return heartbeat(clean_to, writer)
        summary = ViewDigest(view).advance(len(view.keys))
        held = {} if summary is None else summary._asdict()
        return heartbeat(clean_to, writer, **{"partitions": 1, **held, "highest": view.highest, **names})


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
        for removed in subsets(removable(path.log, opened, opened.first)):
            yield Session(opened, removed)
            for paused in path.points[index:-1]:
                if paused.end < path.first:
                    continue  # it would begin again from there
                for later in subsets(removable(path.log, end, paused.end)):
                    if later:
                        yield Session(opened, removed | later, paused)


def read(path: Path, session: Session) -> Replica | None:
    """The reader at the end of the path; None if it has to begin again from there, which is a session of its own.

    One that kept up and starts over at a gap is returned as it is.
    """
    opened, removed, paused = session
    count = 1 if opened.partitions == 1 else stage.first_count(_left(path, session)) or opened.partitions
    replica = Replica(0, count, compaction_lag_s=LAG_S, kept_records_max=1_000)
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
        if not late:
            replica.complete_as_of(now_s)
            replica.reached(now_s, offset + (entry.key == NO_RECORD.key))
        if entry.key != NO_RECORD.key:
            replica.read(now_s, _record(path.log, offset))
        if judged and not late and replica.phase is Phase.START_OVER:
            differs = OTHER_DIGEST.encode() in (entry.value or b"")  # then what it skipped may have been a record
            return None if differs else replica
        if judged and replica.marks.newest == offset and not is_bent(ColdStart, "_judge_marks"):
            return None
    replica.reached(path.now * TICK_S, len(path.log))
    return None if replica.phase is Phase.START_OVER else replica


def _read_to_end(replica: Replica, path: Path, session: Session) -> None:
    now_s, end = session.opened.now * TICK_S, session.opened.end
    replica.opened(now_s, session.opened.first, end)
    for record in _left(path, session):
        replica.read(now_s, record)
    replica.reached(now_s, end)


def _left(path: Path, session: Session) -> list[RecordRead]:
    """What the log held when a reader opened it."""
    return [
        _record(path.log, offset)
        for offset in range(session.opened.first, session.opened.end)
        if offset not in session.removed and path.log[offset].key != NO_RECORD.key
    ]


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
    lines = [Line(0, offset, ms, key, value) for _, _, offset, ms, key, value in _left(path, session)]
    now_ms = _ms(path.now)
    outcome = join(lines, len(path.log), now_ms, round(LAG_S * 500), read_ms=now_ms)
    if not isinstance(outcome, Joined) or _vouches_otherwise(path, outcome.through):
        return False
    restated = restated_at(path, path.first)
    return path.first == 0 or (restated is not None and restated <= outcome.through)


def _vouches_otherwise(path: Path, through: int) -> bool:
    """Whether who vouches through an offset holds other states."""
    beats = [orjson.loads(entry.value or b"{}") for entry in path.log if entry.key == HEARTBEAT_KEY]
    return any(beat["clean_to"] == through and beat.get("digest") == OTHER_DIGEST for beat in beats)


def restated_at(path: Path, first: int) -> int | None:
    """Offset of a mark that restates what was deleted below an offset."""
    return next(
        (
            offset
            for offset, entry in enumerate(path.log)
            if entry.key == HEAD_KEY and orjson.loads(entry.value or b"{}")["first"] >= first
        ),
        None,
    )


def _ms(tick: int) -> int:
    return round(tick * TICK_S * 1000)
