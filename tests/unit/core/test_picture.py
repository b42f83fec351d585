"""One picture after the other: what has changed is in the next one, what has not is not made again."""

from types import SimpleNamespace
from typing import Any

import pytest

from statechannel.engine.cluster_view import ClusterViews
from statechannel.protocol.log import RecordRead
from statechannel.protocol.replica import Phase
from statechannel.protocol.view import View
from tests.support.decision_records import LOWER, NAMESPACE, UPPER, WHOLE, ChannelLog

HALF, REST = f"{NAMESPACE}/{LOWER}", f"{NAMESPACE}/{UPPER}"


def engine_of(*views: View, unjudged: int | None = None) -> Any:
    """What a picture is taken of: an engine's replicas, and no more than that."""
    replicas = [
        SimpleNamespace(partition=number, view=view, phase=Phase.CAUGHT_UP, applied=view.applied)
        for number, view in enumerate(views)
    ]
    return SimpleNamespace(
        replicas=replicas,
        judges=lambda partition: partition != unjudged,
        identity=SimpleNamespace(broker="b1"),
        leading=False,
        term=-1,
        members=SimpleNamespace(alive={}),
        mode="normal",
        caught_up=True,
        draining=False,
        repair_paused=None,
        now=SimpleNamespace(mono_s=0.0),
    )


def history() -> list[RecordRead]:
    """A namespace that lives, is split, deleted and created again."""
    log = ChannelLog()
    log.created("0x00000000_0xffffffff")
    log.assigned(WHOLE, "b1")
    log.moved(WHOLE, "b1", "b2")
    log.split(WHOLE, "b2", LOWER, UPPER)
    log.moved(HALF, "b2", "b1")
    log.unloaded(HALF, "b1")
    log.unloaded(REST, "b2")
    base = log._accepted[NAMESPACE][1]
    log._accepted[NAMESPACE] = max(version for version, _ in log._accepted.values()), base
    log.write(NAMESPACE, "Deleted", flow="namespace", operation="delete-1")
    log.created(LOWER, UPPER)
    log.assigned(HALF, "b3")
    return log.records


def test_it_is_what_a_new_one_would_be_after_every_record() -> None:
    view, pictures = View(0, 1), ClusterViews()
    seen = []
    for record in history():
        view.read(record.offset, record.key, record.value)
        result = pictures.of(engine_of(view))
        assert result == ClusterViews().of(engine_of(view))
        seen.append([(bundle.bundle, str(bundle.state), bundle.owner) for bundle in result.bundles])
    assert len({str(entry) for entry in seen}) >= 8  # or nothing was compared
    assert seen[-1] == [(HALF, "Assigned", "b3"), (REST, "Unassigned", None)]


def test_what_has_not_changed_is_kept() -> None:
    log = ChannelLog()
    log.created(LOWER, UPPER)
    log.assigned(HALF, "b1")
    view, pictures = View(0, 1), ClusterViews()
    for record in log.records:
        view.read(record.offset, record.key, record.value)
    first = pictures.of(engine_of(view))
    assert pictures.of(engine_of(view)).bundles is first.bundles
    known = len(log.records)
    log.assigned(REST, "b2")
    for record in log.records[known:]:
        view.read(record.offset, record.key, record.value)
    second = pictures.of(engine_of(view))
    assert [bundle.owner for bundle in first.bundles] == ["b1", None]  # it changes no more
    assert [bundle.owner for bundle in second.bundles] == ["b1", "b2"]
    assert second.bundles[0] is first.bundles[0]


@pytest.mark.parametrize("unjudged", [None, 0, 1])
def test_a_partition_that_is_not_judged_is_not_in_it(unjudged: int | None) -> None:
    pictures = ClusterViews()
    views = [View(number, 1) for number in range(2)]
    views[1].partition = 0  # one log in two places: it matters here only who judges it
    for view in views:
        for record in history():
            view.read(record.offset, record.key, record.value)
    whole = pictures.of(engine_of(*views))
    assert len(whole.bundles) == 4
    result = pictures.of(engine_of(*views, unjudged=unjudged))
    assert result == ClusterViews().of(engine_of(*views, unjudged=unjudged))
    assert len(result.bundles) == (4 if unjudged is None else 2)
    assert pictures.of(engine_of(*views)) == whole


def test_a_partition_that_is_read_anew_is_looked_at_anew() -> None:
    pictures, records = ClusterViews(), history()
    views = [View(0, 1), View(0, 1)]
    for record in records:
        views[0].read(record.offset, record.key, record.value)
    for record in records[:3]:
        views[1].read(record.offset, record.key, record.value)
    views[1].applied = views[0].applied  # as after a lenient join: other states, the same position
    pictures.of(engine_of(views[0]))
    assert pictures.of(engine_of(views[1])) == ClusterViews().of(engine_of(views[1]))
