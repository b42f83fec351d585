"""Moments of a log: offset, milliseconds, ISO 8601, age; and the window between two of them."""

import pytest

from statechannel.audit.errors import AuditQuestionError
from statechannel.audit.moments import AsOf, LogWindow, parse_as_of, parse_window
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


@pytest.mark.parametrize(
    "text", ["", "-1", "3x", "1.5", "yesterday", "ms", "12 ms", "2026-13-01", "0001-01-01T00:00:00+23:00x"]
)
def test_everything_else_is_refused(text: str) -> None:
    with pytest.raises(AuditQuestionError, match="neither an offset nor a time"):
        parse_as_of(text)


def test_both_are_inclusive() -> None:
    record = RecordRead(Topic.CHANNEL, 0, 7, 1_000, None, None)
    assert [AsOf(offset=offset)(record) for offset in (6, 7, 8)] == [False, True, True]
    assert [AsOf(time_ms=time_ms)(record) for time_ms in (999, 1_000, 1_001)] == [False, True, True]


NOW_MS = 1_767_225_600_000


@pytest.mark.parametrize(
    ("text", "age_ms"), [("10m", 600_000), ("1h30m", 5_400_000), ("0.5s", 500), ("7d", 604_800_000), ("1s5ms", 1_005)]
)
def test_ages_count_back_from_now(text: str, age_ms: int) -> None:
    assert parse_as_of(text, now_ms=NOW_MS) == AsOf(time_ms=NOW_MS - age_ms)
    with pytest.raises(AuditQuestionError, match="neither an offset nor a time"):
        parse_as_of(text)


def test_a_number_with_ms_is_a_time_also_where_ages_are_allowed() -> None:
    assert parse_as_of("500ms", now_ms=NOW_MS) == AsOf(time_ms=500)
    with pytest.raises(AuditQuestionError, match="--since 99999d is an age that reaches back before 1970"):
        parse_as_of("99999d", "--since", now_ms=NOW_MS)


def test_a_little_ahead_is_not_the_future() -> None:
    assert not AsOf(time_ms=NOW_MS + 60_000).is_future(NOW_MS)
    assert AsOf(time_ms=NOW_MS + 60_001).is_future(NOW_MS)
    assert not AsOf(offset=10**18).is_future(NOW_MS)


@pytest.mark.parametrize(
    ("since", "until", "inside"),
    [
        (None, None, [True, True, True]),
        ("11", None, [False, True, True]),
        (None, "11", [True, True, False]),
        ("2000ms", "2000ms", [False, True, False]),
        ("11", "2000ms", [False, True, False]),
    ],
)
def test_a_window_is_inclusive_at_both_ends(since: str | None, until: str | None, inside: list[bool]) -> None:
    window = parse_window(since, until, now_ms=NOW_MS)
    assert [window.has(10 + number, 1_000 * (1 + number)) for number in range(3)] == inside
    assert window.is_whole is (since is None and until is None)


def test_what_lasted_is_in_the_window_if_any_part_of_it_is() -> None:
    window = LogWindow(AsOf(time_ms=100), AsOf(time_ms=200))
    spans = [(50, 99), (50, 100), (150, 160), (200, 300), (201, 300), (50, None), (201, None)]
    met = [window.meets((1, start_ms), (None if end_ms is None else 2, end_ms)) for start_ms, end_ms in spans]
    assert met == [False, True, True, True, False, True, False]
    assert window.fields() == {"since": {"timestamp_ms": 100}, "until": {"timestamp_ms": 200}}
    assert LogWindow(AsOf(offset=0)).fields() == {"since": {"offset": 0}, "until": None}


@pytest.mark.parametrize(
    ("since", "until", "message"),
    [
        ("1m", "2m", "--since 1m is later than --until 2m"),
        ("5", "4", "--since 5 is later than --until 4"),
        ("2999-01-01", None, "--since 2999-01-01 is in the future"),
        (None, "soon", "--until 'soon' is neither an offset nor a time, nor an age"),
    ],
)
def test_windows_that_cannot_be(since: str | None, until: str | None, message: str) -> None:
    with pytest.raises(AuditQuestionError, match=message):
        parse_window(since, until, now_ms=NOW_MS)


NOON_MS = 1_767_268_800_000  # 2026-01-01T12:00:00Z


@pytest.mark.parametrize(
    ("text", "ago_ms"),
    [
        ("11:55", 300_000),
        ("11:55Z", 300_000),
        ("9:00", 10_800_000),
        ("11:59:59.250Z", 750),
        ("12:00", 0),
        ("12:30", 84_600_000),  # yesterday: today it is not half past twelve yet
    ],
)
def test_a_time_of_day_is_the_last_one(text: str, ago_ms: int) -> None:
    assert parse_as_of(text, now_ms=NOON_MS) == AsOf(time_ms=NOON_MS - ago_ms)


@pytest.mark.parametrize("digits", [20, 30, 5_000])
def test_digits_are_an_offset_or_nothing(digits: int) -> None:
    """In the basic format of ISO 8601 they would be a time of the twelfth century."""
    with pytest.raises(AuditQuestionError, match="neither an offset nor a time, nor an age"):
        parse_as_of("1" * digits, now_ms=NOON_MS)


@pytest.mark.parametrize("text", ["25:00", "11:60", "11:5", "11", "11:55:1", "11:55+01:00"])
def test_other_times_of_day_are_refused_or_offsets(text: str) -> None:
    if text == "11":
        assert parse_as_of(text, now_ms=NOON_MS) == AsOf(offset=11)
        return
    with pytest.raises(AuditQuestionError, match="neither an offset nor a time, nor an age"):
        parse_as_of(text, now_ms=NOON_MS)
