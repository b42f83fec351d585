"""What a command that follows the channel makes of a cold start that another process marks (protocol.md section 5)."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from statechannel.audit.moments import WHOLE_LOG, AsOf, LogWindow
from statechannel.cli import watch
from statechannel.cli.kit.channel_view import FollowedPartition
from statechannel.kafka.tail import Span
from statechannel.protocol.digest import digest
from statechannel.protocol.log import RecordRead
from statechannel.protocol.replica import Phase
from statechannel.settings.tree import Settings
from tests.support.cold_start_logs import cold_start_log
from tests.support.lone_engine import LoneEngine
from tests.support.mark_cases import AT, CASES, Case, marked_log


class ListTail:
    """Stands for the reader of a partition: the log is a list that grows."""

    def __init__(self, records: list[RecordRead]) -> None:
        self.records = records

    def span(self) -> Span:
        return Span(0, 0, self.records[-1].offset + 1)  # the cleaner never moves the first offset

    def records_of(self, span: Span) -> Iterator[RecordRead]:
        yield from [record for record in self.records if record.offset < span.end]

    def follow(self, start: int) -> Iterator[list[RecordRead]]:
        at = start
        while True:
            batch = [record for record in self.records if record.offset >= at]
            at = batch[-1].offset + 1 if batch else at
            yield batch


def followed(records: list[RecordRead]) -> FollowedPartition:
    tail: Any = SimpleNamespace(records=None)
    listed = ListTail(records)
    tail.span, tail.records, tail.follow = listed.span, listed.records_of, listed.follow
    connection: Any = SimpleNamespace(settings=Settings())
    part = FollowedPartition(connection, tail, 0, 1)
    assert offsets_of(part) == [record.offset for record in records if records[0].offset == 0]
    return part


def offsets_of(part: FollowedPartition) -> list[int]:
    """Take in what there is, however often the partition has to be opened for it; what was judged."""
    judged = []
    for _ in range(4):
        rows = part.read(part.wait()) if part.following else part.open()
        judged += [record.offset for record, _ in rows]
    return judged


def split_at_the_mark() -> tuple[list[RecordRead], list[RecordRead], LoneEngine]:
    """The log of a cold start: what a follower has read before the mark, what comes from it on, and who wrote the mark."""
    records, alone = cold_start_log(differs=True)
    mark = next(record.offset for record in records if record.key == b"!cold-start")
    return records[:mark], records[mark:], alone


def test_a_follower_of_a_whole_log_takes_over_what_the_cold_starter_asserted() -> None:
    before, after, alone = split_at_the_mark()
    log = [*before]
    part = followed(log)
    assert digest([part.replica.view]) != digest([alone.engine.replicas[0].view])
    log += after
    assert offsets_of(part) == [record.offset for record in after]
    assert part.replica.caught_up
    assert digest([part.replica.view]) == digest([alone.engine.replicas[0].view])


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_follower_of_a_cleaned_log_joins_anew_at_a_mark_that_counts(case: Case) -> None:
    """As young as the log is, what lies below its newest heartbeat is sure, until a mark counts that it does not know."""
    marked = marked_log(case, vouched=True, at_ms=2**52)
    log = marked[: AT - 1]
    part = followed(log)
    assert part.replica.caught_up
    log.append(marked[AT - 1])
    offsets_of(part)
    assert part.opened == (2 if case.counts else 1)
    assert part.replica.phase is (Phase.WAITING if case.counts else Phase.CAUGHT_UP)
    log.append(marked[AT])
    offsets_of(part)
    assert part.replica.caught_up


def test_a_watch_shows_each_change_once_and_what_a_cold_start_has_overruled(capsys: pytest.CaptureFixture[str]) -> None:
    """What comes while the log is read anew is shown, and what was shown before or lay in the log before is not."""
    before, after, _ = split_at_the_mark()
    log = before[:-2]
    part = followed(log)
    log += [*before[-2:], *after]
    shown = [record.offset for _ in range(4) for record, _ in watch._next(part, WHOLE_LOG)]
    assert shown == [record.offset for record in log[len(before) - 2 :]]
    stderr = capsys.readouterr().err
    assert "accepted what it read as the truth" in stderr
    assert "overruled by a cold start" in stderr


def test_a_watch_with_a_beginning_shows_what_lies_in_the_log_once() -> None:
    before, after, _ = split_at_the_mark()
    log = before[:-2]
    part = followed(log)
    log += [*before[-2:], *after]
    since = LogWindow(AsOf(offset=0))
    shown = [record.offset for _ in range(4) for record, _ in watch._next(part, since)]
    later = [record.offset for record in log[len(before) - 2 :]]
    assert shown[-len(later) :] == later
    assert shown == sorted(set(shown))
