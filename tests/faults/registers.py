"""Whether what clients saw of the storage is a fenced register for each topic. Pure; exact, since the storage's order is known.

A history is linearizable if each call can be given a moment between its sending and its answer so that every read sees the
write before it. In general the order of writes has to be searched; here the storage's journal is that order. What is left is
to see that no call that ended before another was sent stands behind it: enough, since a sort by place, then by sending, then
is such an order.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import orjson

from tests.faults.storage import Fences
from tests.support.data_plane import place_of_bundle, place_of_topic

NEVER_NS = 2**62


class Outcome(StrEnum):
    """How a call ended for the client."""

    OK = "ok"
    NOT_SERVED = "not-served"
    FENCED = "fenced"
    UNKNOWN = "unknown"


class CallKind(StrEnum):
    """What a client asked for. A read from memory is answered by the owner alone; a confirmed one asks the storage first."""

    WRITE = "write"
    READ = "read"
    CONFIRMED_READ = "confirmed-read"


@dataclass(frozen=True, slots=True)
class Call:
    """One write or read of a register, as its client saw it.

    Attributes:
        value: Written, or read; None: nothing was ever written. Each value is written once.
        got_ns: Of the answer; where there was none, nothing is known of the end.
        broker, pid, generation, checked_ns: Of the answer, where a broker took the call.
    """

    kind: CallKind
    topic: str
    value: int | None
    outcome: Outcome
    sent_ns: int
    got_ns: int
    broker: str | None = None
    pid: int | None = None
    generation: int | None = None
    checked_ns: int = 0

    @property
    def over_ns(self) -> int:
        """After this moment the call has no effect any more."""
        return NEVER_NS if self.outcome is Outcome.UNKNOWN else self.got_ns


@dataclass(frozen=True, slots=True)
class Noted:
    """A line of the storage's journal: a bundle opened (without topic), or a value put."""

    accepted: bool
    bundle: str
    generation: int
    broker: str
    pid: int
    topic: str | None = None
    value: int | None = None
    previous: int | None = None


def read_journal(path: Path) -> list[Noted]:
    names = ("accepted", "bundle", "generation", "broker", "pid", "topic", "value", "previous")
    lines = map(orjson.loads, path.read_bytes().splitlines())
    return [Noted(**{name: line[name] for name in names if name in line}) for line in lines]


def wrongly_fenced(journal: Iterable[Noted]) -> Iterator[str]:
    """A generation after a higher one at the same place, a refusal without one, or two processes at one generation."""
    fences: dict[str, Fences] = defaultdict(Fences)
    processes: dict[tuple[str, int], int] = {}
    for entry in journal:
        place = place_of_bundle(entry.bundle)
        of_ring = fences[place.namespace]
        if entry.topic is None:
            level = of_ring.highest(place.lower, place.upper)
        else:
            level = of_ring.level_at(place_of_topic(entry.topic)[1])
        if entry.accepted != (entry.generation >= level):
            did = "accepted" if entry.accepted else "refused"
            yield f"{entry.topic or entry.bundle}: generation {entry.generation} of {entry.broker} was {did} after {level}"
        if entry.accepted and entry.topic is None:
            of_ring.raise_to(place.lower, place.upper, entry.generation)
            if processes.setdefault((entry.bundle, entry.generation), entry.pid) != entry.pid:
                yield f"{entry.bundle}: two processes opened it at generation {entry.generation}"


def not_kept(calls: Iterable[Call], journal: Iterable[Noted]) -> Iterator[str]:
    """Acknowledged writes that are missing or doubled, refused ones that are there, and writes that overwrote unseen ones."""
    stored = [entry for entry in journal if entry.topic is not None and entry.accepted]
    counts = Counter((entry.topic, entry.value) for entry in stored)
    sent: set[tuple[str, int | None]] = set()
    for call in calls:
        if call.kind is not CallKind.WRITE:
            continue
        sent.add((call.topic, call.value))
        count = counts[call.topic, call.value]
        if call.outcome is Outcome.OK and count == 0:
            yield f"{call.topic}: the write of {call.value} was acknowledged by {call.broker} and is lost"
        elif call.outcome in (Outcome.NOT_SERVED, Outcome.FENCED) and count:
            yield f"{call.topic}: the write of {call.value} was refused ({call.outcome}) and is there"
    for (topic, value), count in counts.items():
        if count > 1:
            yield f"{topic}: the write of {value} is there {count} times"
        if topic is None or (topic, value) not in sent:
            yield f"{topic}: nobody wrote {value}"
    last: dict[str | None, int | None] = {}
    for entry in stored:
        before = last.get(entry.topic)
        if entry.previous != before:
            yield (
                f"{entry.topic}: {entry.broker} (pid {entry.pid}) at generation {entry.generation} put {entry.value} "
                f"over {before}, and had seen {entry.previous}"
            )
        last[entry.topic] = entry.value


class Misplaced(NamedTuple):
    """A call that no order can place."""

    call: Call
    what: str


def misplaced(
    calls: Iterable[Call], journal: Iterable[Noted], trusted: Callable[[Call], bool] = lambda _: True
) -> Iterator[Misplaced]:
    """Calls that contradict the storage's order and the clients' clocks.

    Args:
        trusted: Whether other calls may be held against this one; the rest is only held against the trusted.
    """
    places: dict[str, dict[int | None, int]] = defaultdict(lambda: {None: 0})
    for entry in journal:
        if entry.topic is not None and entry.accepted:
            places[entry.topic].setdefault(entry.value, len(places[entry.topic]))
    by_topic: dict[str, list[Call]] = defaultdict(list)
    for call in calls:
        by_topic[call.topic].append(call)
    for topic, of_topic in by_topic.items():
        yield from _misplaced(of_topic, places[topic], trusted)


def _misplaced(
    calls: Sequence[Call], places: dict[int | None, int], trusted: Callable[[Call], bool]
) -> Iterator[Misplaced]:
    placed: list[tuple[tuple[int, int], Call]] = []
    for call in calls:
        if call.kind is CallKind.WRITE:
            if call.outcome in (Outcome.OK, Outcome.UNKNOWN) and call.value in places:  # a lost one is told elsewhere
                placed.append(((places[call.value], 0), call))
        elif call.outcome is Outcome.OK:
            if call.value not in places:
                yield Misplaced(call, f"{call.topic}: {call.broker} answered {call.value}, which the storage never had")
            else:
                placed.append(((places[call.value], 1), call))
    ended = sorted((item for item in placed if trusted(item[1])), key=lambda item: item[1].over_ns)
    next_ended = 0
    newest: tuple[tuple[int, int], Call] | None = None
    for place, call in sorted(placed, key=lambda item: item[1].sent_ns):
        while next_ended < len(ended) and ended[next_ended][1].over_ns < call.sent_ns:
            if newest is None or ended[next_ended][0] > newest[0]:
                newest = ended[next_ended]
            next_ended += 1
        if newest is not None and place < newest[0]:
            before = newest[1]
            late_ms = (call.sent_ns - before.over_ns) / 1e6
            yield Misplaced(
                call,
                f"{call.topic}: the {call.kind} of {call.value} at {call.broker} (pid {call.pid}, generation {call.generation}) "
                f"was sent {late_ms:.1f} ms after the {before.kind} of {before.value} at {before.broker} had ended",
            )
