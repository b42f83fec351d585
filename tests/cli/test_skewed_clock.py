"""The command's clock is not Kafka's: nobody is dead because one of them is ahead."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import dropwhile
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from statechannel.cli import pre_stop
from statechannel.cli.kit import requests
from statechannel.cli.kit.progress import TERMINAL
from statechannel.cli.status import command
from statechannel.cli.status.figures import StatusInputs
from statechannel.engine.membership import MEMBER_FORMAT
from statechannel.errors import NotFoundError
from statechannel.kafka.topics import TopicInfo
from statechannel.protocol.log import RecordRead, Topic
from statechannel.queries import registry
from statechannel.settings import load
from statechannel.stories.processes import RegistryStory

INTERVAL_S, EXPIRY_S = 0.3, 3.0
CONNECTION: Any = SimpleNamespace(
    reporter=TERMINAL,
    settings=load(
        overrides={
            "kafka": {"bootstrap_servers": "127.0.0.1:1"},
            "membership": {"interval_s": INTERVAL_S, "expiry_s": EXPIRY_S},
            "safe_mode": {"after_s": 2.0},
        }
    ),
)


class Kafka:
    """The registry as Kafka holds it, by a clock that is `behind_s` behind ours; `beating` go on writing to it."""

    def __init__(self, behind_s: float = 0.0, *beating: str) -> None:
        self.behind_s, self.beating = behind_s, beating
        self.log: list[RecordRead] = []
        self.opened = self.delivered = 0
        self.followed_s = self.reading_s = 0.0
        self.clock_is_right = True

    def now_ms(self) -> int:
        return int((time.time() - self.behind_s) * 1_000)

    def write(self, broker: str, ago_s: float, **more: object) -> None:
        heartbeat = {"format": MEMBER_FORMAT, "kind": "member", "broker": broker, "incarnation": f"{broker}-1"}
        value = orjson.dumps({**heartbeat, "seq": 1, "since": 0, "listeners": {}, "leaving": False, **more})
        self.append(broker, value, self.now_ms() - int(ago_s * 1_000))

    def append(self, broker: str, value: bytes, at_ms: int) -> None:
        self.log.append(RecordRead(Topic.REGISTRY, 0, len(self.log), at_ms, broker.encode(), value))

    def in_order(self) -> None:
        """What was written broker by broker becomes a log, in which times ascend."""
        in_order = sorted(self.log, key=lambda record: record.timestamp_ms)
        self.log = [record._replace(offset=offset) for offset, record in enumerate(in_order)]

    def write_minutes(self, broker: str, until_ago_s: float = 0.5) -> None:
        for back in range(120, -1, -1):
            self.write(broker, until_ago_s + back)

    def span(self, *, start: int = 0, from_time_ms: int | None = None) -> Any:
        self.asked_ms = self.now_ms()
        return SimpleNamespace(start=start, from_ms=from_time_ms, end=len(self.log))

    def records(self, span: Any) -> list[RecordRead]:
        """As Kafka: from the first record with such a time on, whatever the times behind it are."""
        read = self.log[span.start : span.end]
        if span.from_ms is not None:
            read = list(dropwhile(lambda record: record.timestamp_ms < span.from_ms, read))
        self.delivered += len(read)
        time.sleep(self.reading_s)
        return read

    def follow(self, start: int, stop: Callable[[], bool]) -> Iterator[list[RecordRead]]:
        began_s = time.monotonic()
        beats_s = began_s + INTERVAL_S / 2
        while True:
            time.sleep(0.02)
            if time.monotonic() >= beats_s:
                beats_s += INTERVAL_S
                for broker in self.beating:
                    self.write(broker, 0.0)
            yield self.log[start:]
            start = len(self.log)
            self.followed_s = time.monotonic() - began_s
            if stop():
                return


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[Kafka], Kafka]:
    @contextmanager
    def nothing(*_: object) -> Iterator[None]:
        yield

    def use(kafka: Kafka) -> Kafka:
        @contextmanager
        def open_tail(*_: object) -> Iterator[Kafka]:
            kafka.opened += 1
            if kafka.clock_is_right:
                kafka.in_order()
            yield kafka

        monkeypatch.setattr(registry, "open_tail", open_tail)
        monkeypatch.setattr(registry, "notify_if_slow", nothing)
        return kafka

    return use


@pytest.mark.parametrize("behind_s", [-7_200, -30, 0, 30, 120, 7_200])
def test_a_broker_that_beats_is_alive_whatever_our_clock_says(use: Callable[[Kafka], Kafka], behind_s: float) -> None:
    kafka = use(Kafka(behind_s, "b1"))
    kafka.write_minutes("b1")
    assert requests._absence(CONNECTION, listen=True) == ""


def test_all_who_beat_are_shown_with_ages_by_kafkas_clock(use: Callable[[Kafka], Kafka]) -> None:
    kafka = use(Kafka(120, "b1"))
    kafka.write_minutes("b0", until_ago_s=100)
    kafka.write_minutes("b1")
    kafka.write_minutes("b2")
    kafka.write_minutes("b3", until_ago_s=20)
    kafka.write("b4", 6)
    kafka.write("b4", 5, leaving=True)
    result = registry.read_registry(CONNECTION)
    assert set(result.members.alive) == {"b1", "b2"}
    assert set(result.members.lost) == {"b3", "b4"}, "as with a clock that is right: those of the last minute"
    assert 0 <= result.read_at_ms - result.members.alive["b2"].heard_at_ms < 3_000


def test_where_a_heartbeat_is_fresh_nobody_listens(use: Callable[[Kafka], Kafka]) -> None:
    kafka = use(Kafka(0, "b1"))
    kafka.write_minutes("b1")
    kafka.write_minutes("b2", until_ago_s=20)
    assert set(registry.read_registry(CONNECTION).members.alive) == {"b1"}
    assert (kafka.followed_s, kafka.opened) == (0, 1)


def test_nobody_is_silent_for_the_time_that_reading_takes(use: Callable[[Kafka], Kafka]) -> None:
    kafka = use(Kafka())
    kafka.write_minutes("b1")
    kafka.reading_s = 0.1
    assert registry.read_registry(CONNECTION).read_at_ms <= kafka.asked_ms


def test_where_everybody_said_goodbye_nobody_listens(use: Callable[[Kafka], Kafka]) -> None:
    kafka = use(Kafka(120))
    kafka.write("b1", 300)
    kafka.write("b1", 290, leaving=True)
    assert "no broker is alive: b1 left 6" in requests._absence(CONNECTION, listen=True)
    assert kafka.followed_s == 0


@pytest.mark.parametrize(("lost_shown_s", "lost"), [(3_600, {"b2"}), (600, set()), (0, set())])
def test_a_lost_broker_is_shown_until_it_is_back(lost_shown_s: float, lost: set[str], use: Callable[[Kafka], Kafka]):
    kafka = use(Kafka(0, "b1"))
    for name in ("b2", "b3", "b4"):
        kafka.write(name, 1_200)
    kafka.write("b3", 1_199, leaving=True)
    kafka.write_minutes("b1")
    kafka.write_minutes("b4")
    membership = CONNECTION.settings.membership.model_copy(update={"lost_shown_s": lost_shown_s})
    connection: Any = SimpleNamespace(
        reporter=TERMINAL, settings=CONNECTION.settings.model_copy(update={"membership": membership})
    )
    seen = registry.read_registry(connection, all_lost=True)
    assert (set(seen.members.lost), set(seen.members.alive)) == (lost, {"b1", "b4"})


HOUR_S = 3_600.0


def wrong_clock(behind_s: float, *beating: str) -> Kafka:
    """A log in the order in which it was written, whatever its times are."""
    kafka = Kafka(behind_s, *beating)
    kafka.clock_is_right = False
    return kafka


def jump(kafka: Kafka, by_s: float, *brokers: str, right_ago_s: float = 8.0) -> None:
    """All brokers beat for a minute, then for 14 s with Kafka's clock `by_s` ahead."""
    for ago_s in range(60, 0, -1):
        if right_ago_s < ago_s <= right_ago_s + 14:
            for broker in brokers:
                kafka.write(broker, ago_s - by_s)
        elif ago_s > right_ago_s:
            for broker in brokers:
                kafka.write(broker, ago_s)


@pytest.mark.parametrize("by_s", [2 * HOUR_S, -2 * HOUR_S])
def test_a_jump_of_kafkas_clock_makes_nobody_dead_for_as_long_as_it_was(use: Callable[[Kafka], Kafka], by_s: float):
    kafka = use(wrong_clock(0, "b1", "b2"))
    jump(kafka, by_s, "b1", "b2")
    for ago_s in (8, 7, 6, 5, 4, 3, 2, 1):
        for broker in ("b1", "b2"):
            kafka.write(broker, ago_s - 0.5)
    seen = registry.read_registry(CONNECTION)
    assert set(seen.members.alive) == {"b1", "b2"}
    assert all(0 <= seen.read_at_ms - member.heard_at_ms < 3_000 for member in seen.members.alive.values())
    assert requests._absence(CONNECTION, listen=True) == ""
    assert kafka.followed_s == 0, "the order of the log says it: nobody has to listen"


@pytest.mark.parametrize("by_s", [2 * HOUR_S, -2 * HOUR_S])
def test_who_died_while_the_clock_was_wrong_is_lost_and_the_others_are_not(use: Callable[[Kafka], Kafka], by_s: float):
    kafka = use(wrong_clock(0, "b1"))
    jump(kafka, by_s, "b1", "b2")
    for ago_s in (8, 7, 6, 5, 4, 3, 2, 1):
        kafka.write("b1", ago_s - 0.5)
    assert set(registry.read_registry(CONNECTION).members.alive) == {"b1"}


@pytest.mark.parametrize("by_s", [2 * HOUR_S, -2 * HOUR_S])
def test_while_the_clock_is_being_set_all_who_beat_are_alive(use: Callable[[Kafka], Kafka], by_s: float) -> None:
    """The first heartbeat by the new time is in the log, and those of the others are not yet."""
    kafka = use(wrong_clock(-by_s, "b1", "b2"))
    for ago_s in (3, 2, 1):
        for broker in ("b1", "b2", "b3"):
            kafka.write(broker, ago_s + by_s)
    kafka.write("b1", 0.1)
    seen = registry.read_registry(CONNECTION)
    assert set(seen.members.alive) == {"b1", "b2"}
    assert kafka.followed_s < EXPIRY_S


def test_records_from_the_future_are_named_as_long_as_their_times_are_to_come(use: Callable[[Kafka], Kafka]) -> None:
    kafka = use(wrong_clock(0, "b1"))
    jump(kafka, 2 * HOUR_S, "b1")
    kafka.write("b1", 0.5)
    future = registry.read_registry(CONNECTION).future
    assert abs(future.to_ms - future.from_ms - 2 * HOUR_S * 1_000) < 20_000
    assert future.last_offset == len(kafka.log) - 2
    assert "from the future" in future.sentence

    kafka = use(wrong_clock(0, "b1"))
    jump(kafka, 20.0, "b1", right_ago_s=40)
    kafka.write("b1", 0.5)
    assert registry.read_registry(CONNECTION).future is None, "time has come to it"


def test_where_the_last_record_is_from_the_future_listening_shows_who_lives(use: Callable[[Kafka], Kafka]) -> None:
    kafka = use(wrong_clock(0, "b1"))
    for broker in ("b1", "b2"):
        kafka.write(broker, -2 * HOUR_S)
    assert set(registry.read_registry(CONNECTION).members.alive) == {"b1"}
    kafka = use(wrong_clock(0))
    kafka.write("b1", -2 * HOUR_S)
    seen = registry.read_registry(CONNECTION)
    assert (set(seen.members.alive), seen.future is not None) == (set(), True)


class TestPreStop:
    """No time of a record proves that a broker has ended."""

    def test_a_broker_whose_time_is_old_is_awaited(self, use: Callable[[Kafka], Kafka]) -> None:
        kafka = use(wrong_clock(0, "b1", "b2"))
        kafka.write("b2", 30)
        kafka.write_minutes("b1")
        kafka.in_order()
        assert pre_stop._member(CONNECTION, "b2", defaulted=False).broker == "b2"

    def test_one_that_left_and_one_that_never_was_are_not(self, use: Callable[[Kafka], Kafka]) -> None:
        kafka = use(Kafka(0, "b1", "b2"))
        kafka.write_minutes("b1")
        kafka.write("b2", 40)
        kafka.write("b2", 30, leaving=True)
        for name in ("b2", "b3"):
            with pytest.raises(NotFoundError, match="not alive"):
                pre_stop._member(CONNECTION, name, defaulted=False)
        assert kafka.followed_s == 0

    def test_one_that_stays_silent_is_not_alive(self, use: Callable[[Kafka], Kafka]) -> None:
        kafka = use(Kafka(0, "b1"))
        kafka.write("b2", 30)
        kafka.write_minutes("b1")
        with pytest.raises(NotFoundError, match="not alive"):
            pre_stop._member(CONNECTION, "b2", defaulted=False)
        assert kafka.followed_s >= 1.9 * INTERVAL_S


def status_of(connection: Any, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], None] = lambda: None) -> Any:
    """The members that `status` shows; `meanwhile` happens while it reads the channel."""
    monkeypatch.setattr(registry, "describe_topic", lambda *_: TopicInfo("c", "id", 1, 1, {}))
    monkeypatch.setattr(command, "read_channel", lambda *_: meanwhile())
    monkeypatch.setattr(command, "remarks", lambda *_: None)
    monkeypatch.setattr(command, "requests_of_last_hour", lambda _: command.RequestIncidents())
    monkeypatch.setattr(command, "topic_state", lambda *_: {})
    monkeypatch.setattr(command, "figures", lambda _, seen, *__, **___: {"members": seen.members})
    monkeypatch.setattr(command, "with_health", lambda fields, _: fields)
    return command.read_once(connection, StatusInputs(RegistryStory(EXPIRY_S)), 8)["members"]


CHANNEL: Any = SimpleNamespace(
    reporter=TERMINAL,
    settings=CONNECTION.settings,
    topics=SimpleNamespace(channel="c"),
    client=SimpleNamespace(bootstrap_servers="a:1"),
    context="",
)


def test_status_has_a_broker_that_was_lost_long_ago(use: Callable[[Kafka], Kafka], monkeypatch: pytest.MonkeyPatch):
    kafka = use(Kafka(0, "b1"))
    kafka.write("b2", 1_200)
    kafka.write_minutes("b1")
    assert set(status_of(CHANNEL, monkeypatch).lost) == {"b2"}


def test_status_reads_each_heartbeat_once(use: Callable[[Kafka], Kafka], monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = use(Kafka(0, "b1"))
    kafka.write_minutes("b1")
    members = status_of(CHANNEL, monkeypatch, lambda: kafka.write("b2", 0))
    assert set(members.alive) == {"b1", "b2"}, "who started while the channel was read is alive, too"
    assert (kafka.opened, kafka.delivered) == (1, len(kafka.log))


def test_status_listens_where_our_clock_is_ahead(use: Callable[[Kafka], Kafka], monkeypatch: pytest.MonkeyPatch):
    kafka = use(Kafka(7_200, "b1"))
    kafka.write_minutes("b1")
    assert set(status_of(CHANNEL, monkeypatch).alive) == {"b1"}


def test_an_empty_registry_is_not_listened_to(use: Callable[[Kafka], Kafka]) -> None:
    kafka = use(Kafka())
    message = f"no broker is running on channel {CONNECTION.settings.channel.name}: its registry has no heartbeat"
    assert requests._absence(CONNECTION, listen=True) == message
    assert kafka.followed_s == 0


@pytest.mark.parametrize("behind_s", [0, 120])
def test_who_stays_silent_is_named_after_two_intervals(use: Callable[[Kafka], Kafka], behind_s: float) -> None:
    kafka = use(Kafka(behind_s))
    kafka.write_minutes("b1", until_ago_s=600)
    kafka.write("b2", 700, leaving=True)
    assert "no broker is alive: b1 was last heard" in requests._absence(CONNECTION, listen=True)
    # A wait may end a moment early by the clock, as much as the operating system rounds.
    assert 1.9 * INTERVAL_S <= kafka.followed_s < EXPIRY_S, "it did not wait for the end of the patience"
    assert registry.read_registry(CONNECTION).members.lost == {}


def test_a_goodbye_is_no_heartbeat(use: Callable[[Kafka], Kafka]) -> None:
    kafka = use(Kafka(120))
    kafka.write_minutes("b1")
    plain = kafka.follow

    def follow(start: int, stop: Callable[[], bool]) -> Iterator[list[RecordRead]]:
        kafka.write("b1", 0, leaving=True)
        return plain(start, stop)

    kafka.follow = follow  # type: ignore[method-assign]
    assert "no broker is alive: b1 left" in requests._absence(CONNECTION, listen=True)


def test_a_command_that_does_not_wait_does_not_listen(use: Callable[[Kafka], Kafka]) -> None:
    kafka = use(Kafka(120, "b1"))
    kafka.write_minutes("b1")
    assert "no broker is alive: b1 was last heard" in requests._absence(CONNECTION, listen=False)
    assert kafka.followed_s == 0
