"""Rates and ages as people read them."""

import pytest

from shedders.model.amounts import MESSAGES, are, count, part_of, rate, seconds, were


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B/s"),
        (999.4, "999 B/s"),
        (999.95, "1.0 kB/s"),
        (1_000, "1.0 kB/s"),
        (999_940, "999.9 kB/s"),
        (999_950, "1.0 MB/s"),
        (32_990_795, "33.0 MB/s"),
        (-2_500_000, "-2.5 MB/s"),
        (1e30, "1000000000000000.0 PB/s"),
        (float("inf"), "inf B/s"),
    ],
)
def test_bytes_have_prefixes(value: float, text: str) -> None:
    assert rate(value) == text


def test_messages_are_counted() -> None:
    assert rate(40_000.4, MESSAGES) == "40000.4 messages/s"


def test_one_rate_of_another() -> None:
    assert part_of(31_067_414, 32_990_795) == "31.1 of the 33.0 MB/s"
    assert part_of(512, 32_990_795) == "512 B/s of the 33.0 MB/s"
    assert part_of(3, 4, MESSAGES) == "3 of the 4 messages/s"


def test_short_ages_have_a_decimal() -> None:
    assert [seconds(age_s) for age_s in (0.04, 5.96, 9.99, 10.0, 61.7)] == ["0.0 s", "6.0 s", "10.0 s", "10 s", "62 s"]


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 bundles were, are"), (1, "1 bundle was, is"), (2, "2 bundles were, are")]
)
def test_one_is_no_plural(number: int, text: str) -> None:
    assert f"{count(number, 'bundle')} {were(number)}, {are(number)}" == text
