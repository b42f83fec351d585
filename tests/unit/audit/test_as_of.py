"""The moment of an audit: offset, milliseconds, ISO 8601."""

import pytest

from statechannel.audit.engine import AsOf, parse_as_of
from statechannel.audit.errors import AuditQuestionError
from statechannel.protocol.log import RecordRead, Topic


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("0", AsOf(offset=0)),
        ("20260101", AsOf(offset=20_260_101)),
        ("1767225600000ms", AsOf(time_ms=1_767_225_600_000)),
        ("2026-01-01T00:00:00Z", AsOf(time_ms=1_767_225_600_000)),
        ("2026-01-01T01:00:00+01:00", AsOf(time_ms=1_767_225_600_000)),
        ("2026-01-01T00:00:00", AsOf(time_ms=1_767_225_600_000)),
        ("2026-01-01", AsOf(time_ms=1_767_225_600_000)),
        ("2026-01-01T00:00:00.0019Z", AsOf(time_ms=1_767_225_600_001)),
        ("1969-12-31T23:59:59.9995Z", AsOf(time_ms=-1)),
    ],
)
def test_known_forms(text: str, moment: AsOf) -> None:
    assert parse_as_of(text) == moment


@pytest.mark.parametrize("text", ["", "-1", "3x", "1.5", "yesterday", "ms", "12 ms", "2026-13-01"])
def test_everything_else_is_refused(text: str) -> None:
    with pytest.raises(AuditQuestionError, match="neither an offset nor a time"):
        parse_as_of(text)


def test_both_are_inclusive() -> None:
    record = RecordRead(Topic.CHANNEL, 0, 7, 1_000, None, None)
    assert [AsOf(offset=offset)(record) for offset in (6, 7, 8)] == [False, True, True]
    assert [AsOf(time_ms=time_ms)(record) for time_ms in (999, 1_000, 1_001)] == [False, True, True]
