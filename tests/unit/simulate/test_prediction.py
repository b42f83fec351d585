"""How far a live run is from what was foretold: by hand."""

from __future__ import annotations

import pytest

from tests.support.predictions import LoadDifferences, LoadRun, differences, prediction_plot, settled_s

LIVE = LoadRun([0.0, 1.0, 2.0, 3.0], {"b1": [0.2, 0.8, 0.5, 0.4], "b2": [0.2, 0.2, 0.3, 0.4]}, [0.5, 1.5, 2.5])
FORETOLD = LoadRun([0.0, 0.9, 1.9, 3.5], {"b1": [0.2, 0.8, 0.3, 0.3], "b2": [0.2, 0.2, 0.5, 0.5]}, [1.4])


def test_by_hand() -> None:
    # At 0, 1: equal. At 2 they have changed places: no difference by rank. At 3 the simulated ones are as at 1.9.
    assert differences(LIVE, FORETOLD, since_s=1.0) == LoadDifferences(
        by_rank=pytest.approx((0 + 0 + 0 + 0.1) / 4),
        by_broker=pytest.approx((0 + 0 + 0.2 + 0.1) / 4),
        largest=pytest.approx((0 + 0 + 0 + 0.1) / 4),
        apart_live=0.0,
        apart_foretold=pytest.approx(0.2),
        moves_live=2,
        moves_foretold=1,
        settle_live_s=2.0,
        settle_foretold_s=None,
    )


def test_it_has_settled_once_it_stays_close() -> None:
    loads = {"b1": [0.9, 0.5, 0.7, 0.52, 0.5], "b2": [0.1, 0.5, 0.3, 0.48, 0.5]}
    run = LoadRun([0.0, 1.0, 2.0, 3.0, 4.0], loads, [])
    assert settled_s(run, 0.0) == 3.0
    assert settled_s(run, 2.5) == 0.5
    assert settled_s(LoadRun([0.0], {"b1": [None]}, []), 0.0) is None


def test_what_has_no_moment_in_common_is_refused() -> None:
    with pytest.raises(ValueError, match="no common moment"):
        differences(LIVE, LoadRun([9.0], {"b1": [0.1], "b2": [0.1]}, []), 0.0)
    with pytest.raises(ValueError, match="no common moment"):
        differences(LIVE, LoadRun([0.0], {"b1": [0.1]}, []), 0.0)


def test_both_are_drawn() -> None:
    svg = prediction_plot(LIVE, FORETOLD, {"launch": 1.0}, "live against simulated").svg()
    for text in ("b1, live", "b2, simulated", "launch", "moves, live", "live against simulated"):
        assert text in svg
