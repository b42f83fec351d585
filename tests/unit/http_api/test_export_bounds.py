"""How much of a log an audit question over HTTP reads, and where it says that it stopped."""

import pytest

from statechannel.cli.kit.live_log import ExportBounds
from statechannel.kafka.tail import Span
from statechannel.protocol.log import RecordRead, Topic


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
