"""The conformance of hooks: brokers that keep their promises pass, and each planted mistake is found."""

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from design.examples.notes_store import NotesStore
from design.examples.sharded_store import ShardedStore
from statechannel.api import Admission, BrokerHooks, StateChannel
from statechannel.testing import HOOK_ORDERS, ChannelKit, HookPromise, HookPromiseError, KitError, check_hooks
from tests.support import planted_hooks, planted_splits  # noqa: F401 - the mistakes themselves
from tests.support.hook_stores import Blank, Gate, Locked, RefusedError, Shards, Threads, Workers
from tests.support.planted import PLANTED, arguments_of
from tests.support.waits import WAIT_S

ROOT = Path(__file__).parents[3]


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


class Notes(NotesStore):
    """A service that asks the guard of its channel before each use, and has no table of what it serves."""

    channel: StateChannel

    def write(self, bundle: str, topic: str, value: str) -> None:
        admitted = self.channel.guard(topic)
        if not isinstance(admitted, Admission) or not self.put(admitted, topic, value):
            raise RefusedError(topic)

    def read(self, bundle: str, topic: str) -> str | None:
        assert isinstance(self.channel.guard(topic, write=False), Admission)
        return self.get(topic)


class Unfenced(Notes):
    """Its guard admits what a paused process wrote before it was replaced, and its storage takes that."""

    def put(self, admitted: Admission, topic: str, text: str) -> bool:
        self._db.execute("INSERT OR REPLACE INTO note VALUES (?, ?)", (topic, text))
        return True


@pytest.mark.parametrize(("service", "found"), [(Notes, set()), (Unfenced, {HookPromise.FENCES})])
def test_a_service_that_relies_on_guard_alone_needs_no_probe(service: type[Notes], found: set[HookPromise], tmp_path):
    opened: list[Notes] = []

    def make() -> Notes:
        opened.append(service(str(tmp_path / "notes.db")))
        return opened[-1]

    def attach(notes: Notes, channel: StateChannel) -> None:
        notes.channel = channel

    report = check_hooks(make, attach=attach, write=Notes.write, read=Notes.read)
    for notes in opened:
        notes._db.close()
    assert found <= report.codes <= {*found, HookPromise.KEEPS_WRITES}, report.findings
    assert "split-given-up-by-channel" in report.orders


def test_nothing_is_printed_where_nobody_has_set_up_logging() -> None:
    code = "from statechannel.testing import check_hooks\nfrom tests.support.hook_stores import Gate\ncheck_hooks(Gate)"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S, check=True
    )
    assert run.stdout + run.stderr == ""


def test_wrong_calls_are_refused() -> None:
    with pytest.raises(KitError, match="No order or story nonsense"):
        check_hooks(Gate, only=["nonsense"])

    async def inside() -> None:
        check_hooks(Gate)

    with ChannelKit() as kit, pytest.raises(KitError, match="inside an event loop"):
        kit.run(inside())
