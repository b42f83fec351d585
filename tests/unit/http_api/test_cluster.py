"""Pages of bundles over a real view: every row once, by namespace and range, whatever the pages are."""

import asyncio
from types import SimpleNamespace

import orjson
import pytest

from statechannel.http_api import cluster
from statechannel.http_api.cluster import BundleFilter
from statechannel.protocol.bundle import children_of, namespace_bounds
from statechannel.protocol.view import View
from tests.support.lone_engine import CREATED

NAMESPACES = {"a/b": 3, "a/b-c": 1, "t/n": 5, "t/n.x": 2}


@pytest.fixture
def engine():
    """One partition that has these namespaces, created in another order."""
    view = View(0, 1)
    for offset, (name, bundles) in enumerate(reversed(NAMESPACES.items())):
        record = orjson.loads(CREATED) | {"id": f"n{offset}", "children": children_of(namespace_bounds(bundles))}
        view.read(offset, name.encode(), orjson.dumps(record))
    return SimpleNamespace(replicas=[SimpleNamespace(partition=0, view=view, applied=view.applied)])


def paged(engine, limit: int, wanted: BundleFilter | None = None) -> list[str]:
    names, after = [], ""
    for _ in range(100):
        page = cluster._bundles(engine, wanted or BundleFilter(), after, limit)
        assert len(page.rows) <= limit
        names += [row["bundle"] for row in page.rows]
        if page.after is None:
            return names
        assert page.after.rpartition("/")[::2] > after.rpartition("/")[::2]
        after = page.after
    raise AssertionError("the pages have no end")


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 11, 100])
def test_every_bundle_comes_once_in_order(engine, limit):
    every = [
        f"{name}/{part}" for name in sorted(NAMESPACES) for part in children_of(namespace_bounds(NAMESPACES[name]))
    ]
    assert paged(engine, limit) == every
    assert paged(engine, limit, BundleFilter(namespace="t/n")) == [name for name in every if name.startswith("t/n/")]


def test_a_filter_that_none_matches_ends(engine, monkeypatch):
    assert paged(engine, 2, BundleFilter(broker="b9")) == []
    assert paged(engine, 2, BundleFilter(unowned=True)) == []
    assert len(paged(engine, 2, BundleFilter(state="unassigned"))) == sum(NAMESPACES.values())
    monkeypatch.setattr(cluster, "SCANNED_MAX", 2)
    assert paged(engine, 5, BundleFilter(broker="b9")) == []
    assert len(paged(engine, 5)) == sum(NAMESPACES.values())


def test_a_namespace_that_is_not_there_has_no_page(engine):
    assert cluster._bundles(engine, BundleFilter(namespace="no/one"), "", 5) is None
    assert cluster._bundles(engine, BundleFilter(namespace="t/n"), "", 5) is not None


def test_a_cursor_of_a_bundle_that_was_split_meanwhile_leaves_out_none(engine):
    after = "t/n/0x33333333_0x40000000"
    rows = cluster._bundles(engine, BundleFilter(namespace="t/n"), after, 100).rows
    assert all(row["bundle"] > after for row in rows)
    assert len(rows) >= 3


def test_a_change_that_comes_while_a_batch_is_taken_is_in_the_next_batch():
    async def batches() -> list[list[int]]:
        waiting: asyncio.Queue[int | None] = asyncio.Queue()

        async def items():
            while (item := await waiting.get()) is not None:
                yield item

        waiting.put_nowait(1)
        taken = []
        async for batch in cluster._batched(items()):
            taken.append(batch)
            if len(taken) == 1:
                waiting.put_nowait(2)
                await asyncio.sleep(0.01)  # the taker is busy: the next one has come
                waiting.put_nowait(3)
                waiting.put_nowait(None)
        return taken

    assert asyncio.run(batches()) == [[1], [2, 3]]


def test_changes_before_an_error_are_taken_and_then_the_error_comes():
    async def batches() -> list[list[int]]:
        async def items():
            yield 1
            yield 2
            raise ValueError("the end")

        taken = []

        async def take() -> None:
            async for batch in cluster._batched(items()):
                taken.append(batch)

        with pytest.raises(ValueError, match="the end"):
            await take()
        return taken

    assert asyncio.run(batches()) == [[1, 2]]
