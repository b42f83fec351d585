"""How long moves take, and for how long nobody served."""

from statechannel.broker.observe.handovers import HandoverPhase, HandoverTimings
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.record import Kind, Record
from statechannel.protocol.states import State

KEY = b"t/n/0x00000000_0xffffffff"


class Log:
    """Accepted records at log times of one's choice."""

    def __init__(self) -> None:
        self.flights = HandoverTimings()
        self.offset = 0

    def accept(self, at_ms: int, state: State, flow: str | None = "transfer", **more) -> HandoverPhase | None:
        raw = {"flow": flow, **({"lost": more.pop("lost")} if "lost" in more else {})}
        record = Record(Kind.PROPOSAL, "id", 0, "b1", "i1", raw, 1, None, state, **more)
        self.offset += 1
        read = RecordRead(Topic.CHANNEL, 0, self.offset, at_ms, KEY, b"")
        return self.flights.accepted(record, read, at_ms / 1_000)


def test_phases_of_a_transfer_and_its_gap() -> None:
    log = Log()
    assert log.accept(1_000, State.RELEASING, from_="b1", to="b2") is None
    assert log.flights.oldest_s(1.5) == 0.5
    let_go = log.accept(1_040, State.ASSIGNING, from_="b1", to="b2")
    assert (let_go.phase, let_go.phase_s, let_go.whole_s, let_go.gap_s) == ("release", 0.04, None, None)
    done = log.accept(1_100, State.ASSIGNED, from_="b1", to="b2")
    assert (done.phase, done.phase_s, done.whole_s, done.gap_s, done.cause) == ("acquire", 0.06, 0.1, 0.1, "transfer")
    assert len(log.flights) == 0


def test_an_assignment_of_what_nobody_had_is_no_gap() -> None:
    log = Log()
    log.accept(1_000, State.ASSIGNING, "assignment", to="b2")
    done = log.accept(1_030, State.ASSIGNED, "assignment", to="b2")
    assert (done.flow, done.gap_s, done.whole_s) == ("assignment", None, 0.03)


def test_an_unload_on_request_is_no_gap_either() -> None:
    log = Log()
    log.accept(1_000, State.RELEASING, "unload", from_="b1")
    assert log.accept(1_030, State.UNASSIGNED, "unload", from_="b1").gap_s is None


def test_the_gap_of_a_lost_owner_begins_when_it_was_last_heard() -> None:
    log = Log()
    lost = {"broker": "b9", "incarnation": "i9", "last_heard_ms": 2_000}
    log.accept(8_000, State.ASSIGNING, "repair", to="b2", forced=True, lost=lost)
    done = log.accept(8_050, State.ASSIGNED, "repair", to="b2")
    assert (done.gap_s, done.cause, done.whole_s) == (6.05, "lost", 0.05)


def test_a_source_lost_in_the_middle_of_a_transfer() -> None:
    log = Log()
    log.accept(7_000, State.RELEASING, from_="b9", to="b2")
    lost = {"broker": "b9", "last_heard_ms": 6_500}
    log.accept(12_000, State.ASSIGNING, to="b2", forced=True, lost=lost)
    assert log.accept(12_100, State.ASSIGNED, to="b2").gap_s == 5.6


def test_words_of_others_are_no_labels_and_junk_is_no_time() -> None:
    log = Log()
    log.accept(1_000, State.ASSIGNING, "x" * 9_000, to="b2", forced=True, lost={"last_heard_ms": "yesterday"})
    done = log.accept(900, State.ASSIGNED, None, to="b2")
    assert (done.flow, done.phase_s, done.gap_s) == ("other", 0.0, None)


def test_what_was_not_seen_to_begin_is_not_timed_and_the_table_is_bounded() -> None:
    log = Log()
    assert log.accept(1_000, State.ASSIGNED, to="b2") is None
    flights = HandoverTimings(at_once_max=10)
    record = Record(Kind.PROPOSAL, "id", 0, "b1", "i1", {}, 1, None, State.ASSIGNING, to="b1")
    for number in range(100):
        flights.accepted(record, RecordRead(Topic.CHANNEL, 0, number, 5, str(number).encode(), b""), 1.0)
    assert len(flights) == 10
    flights.restart()
    assert len(flights) == 0
