"""Whether missing offsets can have been cleaned."""

import pytest

from statechannel.protocol.gaps import could_be_cleaned

LAG_MS = 3_600_000


@pytest.mark.parametrize(
    ("before_ms", "now_ms", "cleaned"),
    [
        (1_000, 1_000 + LAG_MS - 1, False),
        (1_000, 1_000 + LAG_MS, True),
        (1_000, 1_000, False),
        (5_000, 1_000, False),  # another node's clock was ahead
        (None, 1_000, True),
        (1_000, None, True),
        (None, None, True),
    ],
)
def test_only_an_offset_older_than_the_lag_or_of_unknown_age_can_have_been_cleaned(
    before_ms: int | None, now_ms: int | None, cleaned: bool
) -> None:
    assert could_be_cleaned(before_ms, now_ms, LAG_MS) is cleaned
