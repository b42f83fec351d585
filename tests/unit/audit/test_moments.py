"""Moments of a log: offset, milliseconds, ISO 8601, age; and the window between two of them."""

import pytest

from statechannel.audit.errors import AuditQuestionError
from statechannel.audit.moments import AsOf, LogWindow, iso_ms, parse_as_of, parse_window, was_yesterday
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
    "text", ["", "-1", "3x", "11:55", "1.5", "yesterday", "ms", "12 ms", "2026-13-01", "0001-01-01T00:00:00+23:00x"]
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


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("99999999999", AsOf(offset=99_999_999_999)),
        ("176722560000", None),
        ("17672256000000", None),
        ("176722560000000", AsOf(offset=176_722_560_000_000)),
        ("012345678901", AsOf(offset=12_345_678_901)),
    ],
)
def test_milliseconds_without_their_suffix_are_no_offset(text: str, moment: AsOf | None) -> None:
    if moment is None:
        with pytest.raises(AuditQuestionError) as refused:
            parse_as_of(text)
        assert f"{text}ms" in refused.value.hint
    else:
        assert parse_as_of(text) == moment


def test_the_oldest_age_is_1970() -> None:
    assert parse_as_of("10s", now_ms=10_000) == AsOf(time_ms=0)
    with pytest.raises(AuditQuestionError):
        parse_as_of("10001ms1s", now_ms=10_000)


@pytest.mark.parametrize(
    ("text", "now_ms", "yesterday"),
    [
        ("11:55", NOON_MS, False),
        ("12:30", NOON_MS, True),
        ("12:00", NOON_MS, False),
        ("10m", NOON_MS, False),
        ("1d", NOON_MS, False),
        ("7", NOON_MS, False),
        ("0:00", NOON_MS - 43_200_000, False),
        ("0:01", NOON_MS - 43_200_000, True),
    ],
)
def test_whether_a_time_of_day_means_yesterday(text: str, now_ms: int, yesterday: bool) -> None:
    assert was_yesterday(text, parse_as_of(text, now_ms=now_ms), now_ms) is yesterday


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [("1970-01-01", 0), ("1970-01-01T00:00:00.001+00:00", 1), ("1969-12-31T23:00:00-01:00", 0), ("x", None)],
)
def test_times_of_iso_8601(text: str, at_ms: int | None) -> None:
    assert iso_ms(text) == at_ms


@pytest.mark.parametrize(
    ("as_of", "cut"),
    [
        (AsOf(), (3, 9)),
        (AsOf(offset=7), (2, 7)),
        (AsOf(offset=8), (2, 7)),
        (AsOf(offset=4), (0, -1)),
        (AsOf(time_ms=1_000), (1, 5)),
    ],
)
def test_the_part_of_a_partition_before_a_moment(as_of: AsOf, cut: tuple[int, int]) -> None:
    records = [
        RecordRead(Topic.CHANNEL, 0, offset, 1_000 * number, None, None) for number, offset in enumerate((5, 7, 9), 1)
    ]
    assert as_of.cut(records) == cut
    assert as_of.cut([]) == (0, -1)


def test_a_moment_without_a_bound_leaves_its_side_open() -> None:
    window = LogWindow(AsOf(), AsOf())
    assert window.has(0, 0)
    assert window.meets((5, 5), (None, None))


@pytest.mark.parametrize(
    ("since", "until"), [("5", "5"), ("5000ms", "5000ms"), ("4", "5"), ("5", "4000ms"), (None, "2999-01-01")]
)
def test_windows_that_can_be(since: str | None, until: str | None) -> None:
    window = parse_window(since, until, now_ms=NOW_MS)
    assert (window.since is None, window.until is None) == (since is None, until is None)
