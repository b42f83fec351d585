"""What outlives a long walk of the collector is left out of the next ones, but not for good."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from statechannel.broker.observe import collector


class Held:
    def __init__(self) -> None:
        self.circle = self


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> Iterator[collector.GcExclusion]:
    monkeypatch.setattr(collector, "LONG_WALK_S", 0.0)
    gc.collect()
    gc.unfreeze()
    exclusion = collector.GcExclusion()
    exclusion.begin()
    yield exclusion
    exclusion.end()
    gc.unfreeze()


def test_a_circle_that_outlived_a_long_walk_is_freed_by_the_walk_over_everything(
    walks: collector.GcExclusion, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held()
    gone = weakref.ref(held)
    gc.collect()
    assert gc.get_freeze_count() > 0
    del held
    gc.collect()
    assert gone() is not None
    monkeypatch.setattr(collector, "THAW_S", 0.0)
    gc.collect()
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert gone() is None


def test_nothing_is_done_to_the_process_once_the_last_member_has_ended(walks: collector.GcExclusion) -> None:
    walks.begin()
    walks.end()
    assert walks._on_collection in gc.callbacks
    walks.end()
    assert walks._on_collection not in gc.callbacks
    walks.begin()
