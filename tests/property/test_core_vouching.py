"""From which offset on a joining reader judges, beside a twin that looks at everything anew after every record."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial, partialmethod

import pytest
from hypothesis import Phase as Draw
from hypothesis import event, given, settings
from hypothesis import strategies as st

from statechannel.protocol.joiner import Aside
from statechannel.protocol.log import RecordRead
from statechannel.protocol.replica import Phase, Replica
from tests.twin.vouching import Joined, StartsOver, Waits, join
from tests.twin.wire import Line
from tests.unit.core.against_twin import record_of

HALF_MS = 50_000
ENDED_MS, ENDED_S = 1_000_000, 300.0
AGES_MS = (0, 1, HALF_MS - 1, HALF_MS, HALF_MS + 1, 2 * HALF_MS, 5 * HALF_MS)
"""At the end of the reading, by Kafka's clock."""
LATER_MS = 5_000
BY = {"broker": "b", "incarnation": "i"}


class Clock(Enum):
    """When the reader learns of Kafka's clock."""

    FIRST = auto()
    AT_THE_END = auto()
    NEVER = auto()


@dataclass(frozen=True)
class Log:
    """Whole, with the offsets that the cleaner has left, and how it is read."""

    lines: list[Line]
    left: list[Line]
    end: int
    clock: Clock
    waited_s: int

    @property
    def read_ms(self) -> int | None:
        return ENDED_MS if self.clock is Clock.FIRST else None

    @property
    def ended_ms(self) -> int | None:
        return None if self.clock is Clock.NEVER else ENDED_MS


def heartbeat(clean_to: int) -> bytes:
    return json.dumps(
        {"format": 1, "kind": "heartbeat", "id": "h", "covers": 0, "by": BY, "clean_to": clean_to}
    ).encode()


def mark(through: int) -> bytes:
    return json.dumps({"through": through, "by": BY}).encode()


@st.composite
def logs(draw: st.DrawFn) -> Log:
    ages_ms = sorted(draw(st.lists(st.sampled_from(AGES_MS), max_size=10)), reverse=True)
    end = len(ages_ms)
    ages_ms += sorted(draw(st.lists(st.sampled_from((1, 0, -LATER_MS)), max_size=6)), reverse=True)
    lines = []
    for offset, age_ms in enumerate(ages_ms):
        key, value = f"t/n/0x{offset:08x}_0xffffffff".encode(), b"junk"
        match draw(st.sampled_from(("junk", "junk", "junk", "heartbeat", "heartbeat", "mark", "odd"))):
            case "heartbeat":
                key, value = b"!heartbeat", heartbeat(draw(st.integers(-1, offset + 1)))
            case "mark":
                key, value = b"!cold-start", mark(draw(st.integers(-1, offset + 1)))
            case "odd":
                key = draw(st.sampled_from((b"!heartbeat", b"!cold-start")))
                value = draw(st.sampled_from((b"", b"{}", b'{"through":1}', b'{"clean_to":0}')))
        lines.append(Line(0, offset, ENDED_MS - age_ms, key, value))
    # A gap above the end is rare, and what lies there is read one by one.
    chances = [draw(st.integers(0, 3 if line.offset < end else 11)) for line in lines]
    left = [line for line, chance in zip(lines, chances, strict=True) if chance]
    clock = draw(st.sampled_from((Clock.FIRST, Clock.AT_THE_END, Clock.NEVER)))
    return Log(lines, left, end, clock, draw(st.sampled_from((1, HALF_MS // 1000 - 1, HALF_MS // 1000))))


def outcome(log: Log, read: Sequence[Line]) -> Joined | Waits | StartsOver:
    """What the twin makes of these records."""
    return join(read, log.end, log.ended_ms, HALF_MS, read_ms=log.read_ms, waited_ms=log.waited_s * 1000)


def opened(log: Log) -> Replica:
    """A replica that has read what is left below the end as of its start, as an engine has it read."""
    replica = Replica(0, 1, compaction_lag_s=2 * HALF_MS / 1000, kept_records_max=1_000)
    if log.clock is Clock.FIRST:
        replica.learn_clock(ENDED_MS - ENDED_S * 1000)
    for _ in range(3):  # a gap behind the first record makes a strict reader start over
        replica.opened(ENDED_S, 0, log.end)
        for line in log.left:
            if line.offset < log.end and replica.phase is not Phase.START_OVER:
                replica.read(ENDED_S, record_of(line))
        if replica.phase is not Phase.START_OVER:
            replica.reached(ENDED_S, log.end)
        if replica.phase is not Phase.START_OVER:
            break
    if log.clock is Clock.AT_THE_END:
        replica.learn_clock(ENDED_MS - ENDED_S * 1000)
    return replica


def judged(replica: Replica) -> set[int]:
    """Junk on keys of their own leaves a debt where it was judged, and none where it was taken leniently."""
    return {debt.since_offset for debt in replica.view.ledger.open.values()}


@settings(max_examples=600)
@given(logs())
def test_a_reader_begins_to_judge_where_the_twin_does(log: Log) -> None:
    compare(log)


def compare(log: Log) -> None:
    replica = opened(log)
    read = [line for line in log.left if line.offset < log.end]
    later = [line for line in log.left if line.offset >= log.end]
    while True:
        expected = outcome(log, read)
        results = (log, replica.phase, replica.why, expected)
        if not isinstance(expected, Waits):
            break
        assert replica.phase is Phase.WAITING, results
        if not later:
            event("waits to the end")
            return
        line = later.pop(0)
        read.append(line)
        replica.read(ENDED_S + log.waited_s, record_of(line))
    event(type(expected).__name__)
    if isinstance(expected, StartsOver):
        assert replica.phase is Phase.START_OVER, results
        return
    assert isinstance(expected, Joined)
    assert replica.caught_up, results
    assert judged(replica) == {
        line.offset for line in read if line.offset > expected.through and line.value == b"junk"
    }, results


def _bent_reading(aside: Aside, record: RecordRead, read: Callable[..., None] = Aside.read) -> None:
    floor = aside.floor
    read(aside, record)
    aside.floor = floor


def _bent_ages(
    aside: Aside, ended_ms: float, *, late_ms: float, vouched: Callable[..., bool] = Aside.vouched_by_log
) -> bool:
    return vouched(aside, ended_ms - late_ms)


def _bent_gap(replica: Replica, offset: int) -> bool:
    replica.position = offset
    return True


BENT = {
    "the newest clean heartbeat is not believed": (Aside, "vouched_by_log", lambda _aside, _ended_ms: False),
    "missing offsets are no gap": (
        Replica, "_never_held", lambda replica, _now_s, offset, _ms=0: _bent_gap(replica, offset)
    ),
    "every missing offset was cleaned": (Replica, "_is_young", lambda _replica, _now_s, _before_ms, _ms: False),
    "none was cleaned, whatever the record before it": (
        Replica, "_is_young", lambda _replica, _now_s, before_ms, _ms: before_ms > 0
    ),
    "marks above it are not minded": (Aside, "read", _bent_reading),
    "the whole lag is taken for the half": (Aside, "vouched_by_log", partial(_bent_ages, late_ms=HALF_MS)),
    "as old as half the lag is young": (Aside, "vouched_by_log", partial(_bent_ages, late_ms=1)),
    "records are older by a millisecond": (Aside, "vouched_by_log", partial(_bent_ages, late_ms=-1)),
    "age counts from the newest record": (
        Aside, "vouched_by_log", lambda aside, _, vouched=Aside.vouched_by_log: vouched(aside, aside._newest_ms)
    ),
    "a word for all but the last record is enough": (
        Aside, "vouched_for", lambda aside, end, vouched=Aside.vouched_for: vouched(aside, end - 1)
    ),
    "nobody's word is believed": (Aside, "vouched_for", lambda _aside, _end: False),
}  # fmt: skip


@pytest.mark.parametrize("name", BENT)
def test_the_twin_notices(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, bent = BENT[name]
    monkeypatch.setattr(owner, attribute, partialmethod(bent) if isinstance(bent, partial) else bent)

    @settings(max_examples=3_000, database=None, derandomize=True, phases=[Draw.generate], report_multiple_bugs=False)
    @given(logs())
    def differs(log: Log) -> None:
        compare(log)

    with pytest.raises(AssertionError):
        differs()


def test_all_ends_are_drawn() -> None:
    """The generator reaches what it is for: joins by a later heartbeat and by the log, strict ones, waits, starts over."""
    counts: Counter[str] = Counter()

    @settings(max_examples=500, database=None, derandomize=True)
    @given(logs())
    def count(log: Log) -> None:
        result = outcome(log, log.left)
        counts[type(result).__name__] += 1
        if isinstance(result, Joined):
            counts[
                "strict" if result.through < 0 else "by the log" if result.through < log.end - 1 else "by a word"
            ] += 1

    count()
    assert all(counts[name] >= 5 for name in ("Waits", "StartsOver", "strict", "by the log", "by a word")), counts
