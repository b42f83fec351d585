"""An inbox counts the records of a portion, hands at most one portion out at a time, and keeps its lanes apart."""

import threading

from statechannel.broker.inbox import Inbox, InboxLane
from statechannel.broker.parts import KafkaLog
from statechannel.engine.effects import CallHook, Hook
from statechannel.engine.inputs import Appended, HookFinished, Input, Tick
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.topic_policy import ChannelTopics
from statechannel.protocol.log import RecordRead, RecordsRead, Topic
from tests.support.killing import settled
from tests.support.lone_member import lone_host
from tests.support.waits import WAIT_S


def _portion(size: int) -> RecordsRead:
    return RecordsRead([RecordRead(Topic.CHANNEL, 0, offset, 0, b"k", b"v") for offset in range(size)])


def test_each_record_of_a_portion_counts() -> None:
    inbox = Inbox(1_000, lambda: None)
    inbox.offer([_portion(300), Tick(), _portion(200)])
    assert len(inbox) == 501
    assert inbox.take(256) == [_portion(300)]
    assert len(inbox) == 201
    assert inbox.take(256) == [Tick(), _portion(200)]
    assert len(inbox) == 0
    assert inbox.take(256) == []


def test_a_portion_beyond_the_limit_of_a_take_waits_for_the_next() -> None:
    inbox = Inbox(1_000, lambda: None)
    inbox.offer([Tick(), _portion(300), Tick()])
    assert [inbox.take(256) for _ in range(3)] == [[Tick()], [_portion(300)], [Tick()]]


def _heartbeat(offset: int) -> RecordRead:
    return RecordRead(Topic.REGISTRY, 0, offset, 0, b"b1", b"v")


def test_the_lanes_take_turns_so_that_neither_waits_for_the_other() -> None:
    inbox = Inbox(1_000, lambda: None)
    for _ in range(3):
        inbox.offer([_portion(300)])
    inbox.offer([_heartbeat(1), _heartbeat(2)], InboxLane.MEMBERSHIP)
    inbox.push(Tick(), InboxLane.MEMBERSHIP)
    taken = [inbox.take(256) for _ in range(5)]
    assert taken.count([_portion(300)]) == 3
    assert [_heartbeat(1), _heartbeat(2), Tick()] in taken[:2]
    assert taken[4] == []


def test_a_full_lane_holds_up_its_own_reader_alone() -> None:
    inbox = Inbox(10, lambda: None)
    inbox.offer([_portion(300)])
    blocked = threading.Thread(target=lambda: inbox.offer([_portion(5)]), daemon=True)
    blocked.start()
    inbox.offer([_heartbeat(1)], InboxLane.MEMBERSHIP)
    assert len(inbox) == 301
    assert sorted(map(len, (inbox.take(256), inbox.take(256)))) == [1, 1]
    blocked.join(WAIT_S)
    assert inbox.take(256) == [_portion(5)]


def test_closing_lets_the_readers_of_both_lanes_go() -> None:
    inbox = Inbox(1, lambda: None)
    threads = []
    for lane in InboxLane:
        inbox.offer([_heartbeat(1)], lane)
        threads.append(threading.Thread(target=inbox.offer, args=([_heartbeat(2)], lane), daemon=True))
        threads[-1].start()
    inbox.close()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    assert len(inbox) == 0
    assert inbox.size_bytes == 0


def test_a_closed_inbox_takes_and_gives_nothing_and_wakes_nobody() -> None:
    woken: list[int] = []
    inbox = Inbox(1, lambda: woken.append(1))
    inbox.close()
    inbox.push(Tick())
    inbox.offer([Tick()])
    assert (woken, len(inbox), inbox.take(1)) == ([], 0, [])
    full = Inbox(1, lambda: None)
    full.push(Tick())
    full.close()
    assert full.take(1) == []


async def test_hooks_and_deliveries_that_have_ended_do_not_wait_behind_what_was_read(monkeypatch) -> None:
    lanes: dict[type, InboxLane] = {}
    push = Inbox.push

    def noted(inbox: Inbox, item: Input, lane: InboxLane = InboxLane.LOG) -> None:
        lanes[type(item)] = lane
        push(inbox, item, lane)

    monkeypatch.setattr(Inbox, "push", noted)
    log = KafkaLog(ClientSettings("127.0.0.1:1"), ChannelTopics("c"), {})
    log._inbox = Inbox(10, lambda: None)
    log._answered(Appended(1, 1, 1))
    async with lone_host() as host:
        host._hooks.call(CallHook(7, Hook.ON_OWN, "t/n/0x00000000_0xffffffff", 3, None, 15.0, ()))
        await settled(lambda: HookFinished in lanes)
    assert lanes[HookFinished] is lanes[Appended] is InboxLane.REPORTS
