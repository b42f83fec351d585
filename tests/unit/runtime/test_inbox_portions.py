"""An inbox counts the records of a portion, and hands at most one portion out at a time."""

from __future__ import annotations

from statechannel.core.inputs import RecordRead, RecordsRead, Tick, Topic
from statechannel.runtime.inbox import Inbox


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
