"""Headers of a null: all three, each once, or they mean nothing."""

import pytest

from loaddata.report.record import DEADLINE, LAST_OFFSET, REASON, Tombstone, parse_tombstone
from statechannel.protocol.side_record import Headers

GOOD: Headers = ((REASON, b"expired"), (LAST_OFFSET, b"41"), (DEADLINE, b"1750000000000"))


def test_read_back_as_written() -> None:
    tombstone = Tombstone("expired", 41, 1_750_000_000_000)
    assert tombstone.headers() == GOOD
    assert parse_tombstone(GOOD, 42) == tombstone
    assert parse_tombstone((("more", b"x"), *GOOD), 42) == tombstone


def test_it_counts_over_what_it_names_and_what_is_older() -> None:
    tombstone = Tombstone("expired", 41, 0)
    assert [tombstone.honoured_over(held) for held in (40, 41, 42)] == [True, True, False]


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_one_that_is_missing(missing: int) -> None:
    assert parse_tombstone(GOOD[:missing] + GOOD[missing + 1 :], 42) is None


@pytest.mark.parametrize(
    "wrong",
    [
        (REASON, b""),
        (REASON, None),
        (REASON, b"\xff"),
        (REASON, b"Two words"),
        (REASON, b"x" * 65),
        (LAST_OFFSET, b"-1"),
        (LAST_OFFSET, b"1.5"),
        (LAST_OFFSET, b"9" * 19),
        (LAST_OFFSET, b"42"),  # its own place: nobody can know that before
        (DEADLINE, b"soon"),
        (DEADLINE, None),
    ],
)
def test_one_that_is_malformed(wrong: tuple[str, bytes | None]) -> None:
    headers = tuple(wrong if name == wrong[0] else (name, value) for name, value in GOOD)
    assert parse_tombstone(headers, 42) is None


def test_one_that_is_named_twice() -> None:
    assert parse_tombstone((*GOOD, (REASON, b"expired")), 42) is None


def test_many_headers_are_not_read_to_their_end() -> None:
    assert parse_tombstone(((f"h{number}", b"") for number in range(10**9)), 42) is None
