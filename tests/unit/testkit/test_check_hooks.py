"""The conformance of hooks: brokers that keep their promises pass, and each planted mistake is found."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from design.examples.sharded_store import ShardedStore
from statechannel.api import BrokerHooks
from statechannel.testing import HOOK_ORDERS, ChannelKit, HookPromise, HookPromiseError, KitError, check_hooks
from tests.support import planted_hooks, planted_splits  # noqa: F401 - the mistakes themselves
from tests.support.hook_stores import Blank, Gate, Locked, Shards, Threads, Workers
from tests.support.planted import PLANTED, arguments_of


@pytest.mark.parametrize("hooks", [Gate, Workers, Locked, Threads, Shards], ids=lambda hooks: hooks.__name__)
def test_brokers_that_keep_their_promises_pass(hooks: type[Any]) -> None:
    report = check_hooks(**arguments_of(hooks))
    report.require()
    assert report.orders == HOOK_ORDERS
    assert report.calls > 300


def test_hooks_without_a_probe_and_without_splits_pass() -> None:
    check_hooks(Blank).require()
    check_hooks(BrokerHooks).require()


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[list[ShardedStore]]:
    made: list[ShardedStore] = []
    yield made
    for store in made:
        store._db.close()


def test_the_store_of_the_documentation_passes(stores: list[ShardedStore], tmp_path: Path) -> None:
    def make() -> ShardedStore:
        stores.append(ShardedStore(str(tmp_path / "store.db")))
        return stores[-1]

    def write(store: ShardedStore, bundle: str, topic: str, value: str) -> None:
        store.put(bundle, topic, value)

    def read(store: ShardedStore, bundle: str, topic: str) -> str | None:
        return store.get(bundle, topic)

    serves = lambda store, bundle: store._serving.get(bundle)  # noqa: E731
    check_hooks(make, serves=serves, write=write, read=read).require()
    assert sqlite3.sqlite_version


@pytest.mark.parametrize("name", PLANTED)
def test_each_planted_mistake_is_found(name: str) -> None:
    hooks, found, by, attach = PLANTED[name]
    report = check_hooks(**arguments_of(hooks, attach=attach), only=[by])
    assert report.codes & found, report.findings
    finding = next(finding for finding in report.findings if finding.code in found)
    assert finding.hint
    with pytest.raises(HookPromiseError, match=finding.code) as raised:
        report.require()
    assert raised.value.findings == report.findings


def test_there_are_fifty_mistakes_and_each_promise_is_broken_by_one() -> None:
    assert len(PLANTED) >= 50
    broken = {promise for planted in PLANTED.values() for promise in planted.found}
    assert set(HookPromise) - broken == {HookPromise.PROBE}


def test_a_probe_that_raises_is_a_finding() -> None:
    report = check_hooks(Gate, serves=lambda hooks, bundle: hooks.serving[bundle], only=["assigned"])
    assert report.codes == {HookPromise.PROBE}


def test_wrong_calls_are_refused() -> None:
    with pytest.raises(KitError, match="No order or story nonsense"):
        check_hooks(Gate, only=["nonsense"])

    async def inside() -> None:
        check_hooks(Gate)

    with ChannelKit() as kit, pytest.raises(KitError, match="inside an event loop"):
        kit.run(inside())
