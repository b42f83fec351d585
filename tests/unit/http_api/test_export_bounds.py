"""How much of a log an audit question over HTTP reads, and where it says that it stopped."""

import pytest

from statechannel.cli import http_audit
from statechannel.cli.kit.channel_view import not_found
from statechannel.cli.kit.live_log import ExportBounds
from statechannel.errors import StateChannelError
from statechannel.http_api.problems import ProblemError
from statechannel.kafka.tail import Span
from statechannel.protocol.log import RecordRead, Topic
from tests.support.http_fakes import FakeCluster, http_settings


@pytest.mark.parametrize(
    ("sizes", "records_max", "ends", "stopped_at"),
    [
        ([10, 20], 30, [10, 20], {}),
        ([10, 20], 29, [10, 19], {1: 19}),
        ([2, 100, 100], 50, [2, 24, 24], {1: 24, 2: 24}),
        ([5, 5], 1, [0, 1], {0: 0, 1: 1}),
        ([0], 1, [0], {}),
    ],
)
def test_each_partition_has_its_share(sizes, records_max, ends, stopped_at):
    bounds = ExportBounds(records_max, 60.0)
    spans = [Span(0, 0, size) for size in sizes]
    assert [span.end for span in bounds.spans(spans)] == ends
    assert bounds.stopped_at == stopped_at


@pytest.mark.parametrize(("time_s", "read", "stopped_at"), [(60.0, 4, {}), (0.0, 1, {0: 1, 1: 3})])
def test_where_the_time_is_up_the_rest_is_left_out(time_s, read, stopped_at):
    bounds = ExportBounds(100, time_s)
    spans = bounds.spans([Span(0, 0, 2), Span(3, 3, 5)])
    records = [
        RecordRead(Topic.CHANNEL, part, offset, 0, None, None) for part, offset in ((0, 0), (0, 1), (1, 3), (1, 4))
    ]
    assert len(list(bounds.within(records, spans))) == read
    assert bounds.stopped_at == stopped_at


@pytest.mark.parametrize("size", [5, 2_000_000])
async def test_what_a_part_of_the_log_does_not_have_is_not_said_to_have_been_missing(size, monkeypatch, tmp_path):
    monkeypatch.setattr(http_audit, "export_live", lambda _, __, bounds: bounds.spans([Span(0, 0, size)]))
    answers = http_audit.LogAnswers(FakeCluster(http_settings(audit_records_max=1_000)))

    def look(asked):
        asked.source.export(tmp_path)
        raise not_found("t/n did not exist then", hint="see its history")

    with pytest.raises(StateChannelError) as refused:
        await answers._of(look)
    if size == 5:
        assert not isinstance(refused.value, ProblemError)
    else:
        document = refused.value.document()
        assert (document["reason"], document["retryable"]) == ("answer-late", False)
        assert document["log"] == {"complete": False, "stopped_at": {"0": 1_000}}
