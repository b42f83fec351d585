"""The key-value store of router.md: writers lose nothing while its processes are killed, paused, and relieved of bundles."""

import importlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

import httpx
import pytest
from ulid import ULID

from statechannel.api import Admission, Redirect
from statechannel.broker.assembly import access
from statechannel.broker.request_writer import write_request
from statechannel.operations.request_record import Request
from statechannel.operations.table import RequestCommand
from statechannel.router import BlockingRouter, Route
from statechannel.settings import Settings
from tests.docs.generate import ROOT
from tests.support.channels import make_settings
from tests.support.kafka_lanes import Kafka
from tests.support.waits import WAIT_S, wait_until

EXAMPLES = ROOT / "design/examples"
KEYS = [f"example/kv/key-{number}" for number in range(24)]
BUNDLE = "example/kv/0x00000000_0x20000000"
QUICK = {
    "membership": {"interval_s": 0.3, "expiry_s": 6.0},
    "safe_mode": {"after_s": 3.0, "settle_s": 2.0},
    "kafka": {"session_timeout_ms": 6000},
}
WRITERS = 3
GATED = """
import pathlib, sys, time
import kv_server, kv_store

gate, append = pathlib.Path(sys.argv[2], "gate-" + sys.argv[1]), kv_store.Shard._append

def gated(shard, change):
    while gate.exists():
        gate.with_name(f"{gate.name}-{shard._folder.name}").touch()
        time.sleep(0.01)
    append(shard, change)

kv_store.Shard._append = gated
kv_server.main(*sys.argv[1:])
"""
"""The example, with a gate in the middle of a write: behind the guard, before the storage."""


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    names = ("kv_store", "kv_client", "kv_server")
    loaded = [importlib.import_module(name) for name in names]
    yield type(
        "Examples", (), {"Shard": loaded[0].Shard, **vars(loaded[0]), **vars(loaded[1]), "KvServer": loaded[2].KvServer}
    )
    for name in names:
        sys.modules.pop(name, None)


class Acknowledged(NamedTuple):
    """A write that was answered: the version of the key that it made."""

    key: str
    value: str
    version: int


def mistakes(acknowledged: Sequence[Acknowledged], found: Mapping[str, tuple[str, int] | None]) -> list[str]:
    """What must not be: each acknowledged write made a version of its own, and there are no others."""
    by_key: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for key, value, version in acknowledged:
        by_key[key][version].append(value)
    wrong = []
    for key, versions in by_key.items():
        value, last = found.get(key) or ("", 0)
        wrong += [f"{key}: version {number} is of {values}" for number, values in versions.items() if len(values) > 1]
        wrong += [f"{key}: version {number} was lost" for number in versions if number > last]
        wrong += [f"{key}: nobody wrote version {number}" for number in range(1, last + 1) if number not in versions]
        if last in versions and versions[last] != [value]:
            wrong.append(f"{key}: {value!r} is there, and not {versions[last]}")
    return wrong


# --- the storage alone --------------------------------------------------------------------------------------------------


def paused_owner(examples: Any, folder: Path) -> list[str]:
    """An owner is paused, another one takes over, and both write; then the client of the first tries again at the second."""
    one, two = examples.KvStore(folder), examples.KvStore(folder)
    acknowledged = []

    def put(store: Any, generation: int, value: str, client: str, write: int) -> None:
        try:
            version = store.shard(BUNDLE, generation).put("k", value, client, write)
        except examples.FencedError:
            return
        acknowledged.append(Acknowledged("k", value, version))

    one.on_own(BUNDLE, 3)
    put(one, 3, "a", "c1", 1)
    two.on_own(BUNDLE, 4)
    put(two, 4, "b", "c2", 1)
    put(one, 3, "c", "c1", 2)  # the paused one wakes up
    put(two, 4, "d", "c2", 2)
    end = examples.KvStore(folder)
    end.on_own(BUNDLE, 5)
    return mistakes(acknowledged, {"k": end.shard(BUNDLE, 5).get("k")})


def test_a_paused_owner_takes_no_write(examples, tmp_path) -> None:
    assert paused_owner(examples, tmp_path) == []


def test_without_the_fence_writes_are_lost(examples, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(examples.Shard, "_check_fence", lambda self: None)
    wrong = paused_owner(examples, tmp_path)
    assert "k: version 2 is of ['b', 'c']" in wrong


def test_a_write_is_taken_once(examples, tmp_path) -> None:
    one, two = examples.KvStore(tmp_path), examples.KvStore(tmp_path)
    one.on_own(BUNDLE, 3)
    assert [one.shard(BUNDLE, 3).put("k", "a", "c1", 1) for _ in range(2)] == [1, 1]
    one.on_release(BUNDLE, 3, None)
    two.on_own(BUNDLE, 4)
    assert two.shard(BUNDLE, 4).put("k", "a", "c1", 1) == 1
    assert two.shard(BUNDLE, 4).put("k", "b", "c1", 2) == 2
    with pytest.raises(examples.FencedError):
        one.shard(BUNDLE, 3)


def test_a_former_owner_answers_no_read(examples, tmp_path) -> None:
    one, two = examples.KvStore(tmp_path), examples.KvStore(tmp_path)
    one.on_own(BUNDLE, 3)
    paused = one.shard(BUNDLE, 3)
    assert paused.put("k", "a", "c1", 1) == 1
    assert paused.get("k") == ("a", 1)
    two.on_own(BUNDLE, 4)
    two.shard(BUNDLE, 4).put("k", "b", "c2", 1)
    with pytest.raises(examples.FencedError):
        paused.get("k")
    assert two.shard(BUNDLE, 4).get("k") == ("b", 2)
    released = two.shard(BUNDLE, 4)
    two.on_release(BUNDLE, 4, None)
    with pytest.raises(examples.FencedError):
        released.get("k")


def test_clients_are_remembered_for_a_while_and_no_more_than_some(examples, tmp_path, monkeypatch) -> None:
    """Also by later owners; whoever may still try again is never forgotten to make room."""
    storage, now_s = sys.modules["kv_store"], [1_000.0]
    monkeypatch.setattr(storage, "CLIENTS_MAX", 2)
    monkeypatch.setattr(storage, "time", SimpleNamespace(time=lambda: now_s[0]))
    store = examples.KvStore(tmp_path)
    store.on_own(BUNDLE, 3)
    for client in ("c1", "c2"):
        store.shard(BUNDLE, 3).put("k", client, client, 1)
    store.on_own(BUNDLE, 4)
    shard = store.shard(BUNDLE, 4)
    with pytest.raises(examples.FullError):
        shard.put("k", "c3", "c3", 1)
    assert shard.put("k", "c1", "c1", 1) == 1, "it is not taken again"
    now_s[0] += storage.RETRY_S / 2
    assert shard.put("k", "again", "c1", 2) == 3
    now_s[0] += storage.RETRY_S / 2
    assert shard.put("k", "c3", "c3", 1) == 4, "c2 is forgotten"
    assert shard.put("k", "again", "c1", 2) == 3, "c1 is not"
    assert len(shard._clients) == 2


def test_an_owner_that_comes_late_is_refused(examples, tmp_path) -> None:
    one, two = examples.KvStore(tmp_path), examples.KvStore(tmp_path)
    two.on_own(BUNDLE, 4)
    with pytest.raises(examples.FencedError):
        one.on_own(BUNDLE, 3)
    with pytest.raises(RuntimeError):
        two.on_split(BUNDLE, [], 5)
    assert two.shard(BUNDLE, 4).get("k") is None


def test_a_log_that_could_not_be_cut_back_takes_no_further_line(examples, tmp_path, monkeypatch) -> None:
    """Else the next line would follow half a line, and no owner could read the shard any more."""
    store = examples.KvStore(tmp_path)
    store.on_own(BUNDLE, 3)
    shard = store.shard(BUNDLE, 3)
    assert shard.put("k", "a", "c1", 1) == 1
    log = shard._log

    class Full:
        """A disk that takes half a line, and then fails."""

        def write(self, line: bytes) -> int:
            if len(line) > 10:
                return log.write(line[:10])
            raise OSError("no space left")

        def truncate(self, end: int) -> None:
            raise OSError("input/output error")

        def __getattr__(self, name: str) -> Any:
            return getattr(log, name)

    shard._log = Full()
    with pytest.raises(OSError, match="error"):
        shard.put("k", "b", "c1", 2)
    shard._log = log
    with pytest.raises(examples.FencedError):
        shard.put("k", "c", "c1", 3)
    store.on_own(BUNDLE, 4)
    assert store.shard(BUNDLE, 4).get("k") == ("a", 1)


# --- over HTTP, at a channel that admits all ----------------------------------------------------------------------------


class Admitting:
    """A channel whose guard admits each name, or gives the answer that the test wants."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer or Admission(BUNDLE, 3)
        self.names: list[str] = []

    def guard(self, name: str, **_: Any) -> Any:
        self.names.append(name)
        return self.answer


@contextmanager
def served(examples: Any, folder: Path, channel: Admitting) -> Iterator[Any]:
    store = examples.KvStore(folder)
    store.on_own(BUNDLE, 3)
    server = examples.KvServer(store)
    server.serve(channel)
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def router_to(server: Any, urls: Mapping[str, str] | None = None) -> Any:
    """A router that knows one broker."""
    route = Route(BUNDLE, "b1", {"http": server.url} if urls is None else urls, 3, 0, 0, 0.0, stale=False)
    return SimpleNamespace(
        lookup=lambda name: route, follow=lambda name, redirect: route, wait=lambda name, timeout_s, assign: route
    )


def test_a_write_that_was_cut_off_is_not_taken(examples, tmp_path) -> None:
    """It comes again, and would be answered as taken, although half of it is there."""
    with served(examples, tmp_path, Admitting()) as server:
        head = b"PUT /example/kv/k HTTP/1.1\r\nHost: x\r\nX-Client: c1\r\nX-Write: 1\r\nContent-Length: 10\r\n\r\n"
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=WAIT_S) as sent:
            sent.sendall(head + b"hello")
            sent.shutdown(socket.SHUT_WR)
            assert sent.recv(1000).startswith(b"HTTP/1.1 400")
        shard = server.store.shard(BUNDLE, 3)
        assert shard.get("example/kv/k") is None
        assert shard.put("example/kv/k", "hello, all", "c1", 1) == 1
        assert shard.get("example/kv/k") == ("hello, all", 1)


@pytest.mark.parametrize("key", ["a#b", "a%41", "a?b", "a b", "\u00e9", "%", "a%2fb"])
def test_a_key_arrives_as_it_is(examples, tmp_path, key) -> None:
    channel = Admitting()
    with served(examples, tmp_path, channel) as server:
        client = examples.KvClient(router_to(server))
        name = f"example/kv/{key}"
        assert client.put(name, "v", WAIT_S) == 1
        assert client.get(name, WAIT_S) == ("v", 1)
        assert set(channel.names) == {name}
        assert client.get("example/kv/a", WAIT_S) is None


def test_an_owner_without_an_address_is_waited_for(examples, tmp_path) -> None:
    redirect = Redirect("other-owner", "it is elsewhere", BUNDLE, "b2", {}, 4)
    with served(examples, tmp_path, Admitting(redirect)) as server:
        for router in (router_to(server), router_to(server, {})):
            with pytest.raises(examples.UnansweredError):
                examples.KvClient(router).put("example/kv/k", "v", 0.5)
            router.follow = lambda name, redirect: router_to(server, {}).lookup(name)
            with pytest.raises(examples.UnansweredError):
                examples.KvClient(router).put("example/kv/k", "v", 0.5)


@pytest.mark.parametrize(
    ("acknowledged", "found"),
    [
        ([("k", "a", 1), ("k", "b", 1)], {"k": ("b", 1)}),  # the first was overwritten unseen
        ([("k", "a", 1), ("k", "b", 2)], {"k": ("a", 1)}),  # the second is gone
        ([("k", "a", 1)], {}),
        ([("k", "a", 1)], {"k": ("a", 2)}),  # taken twice
        ([("k", "a", 1), ("k", "b", 2)], {"k": ("a", 2)}),
    ],
)
def test_the_checker_sees(acknowledged, found) -> None:
    assert mistakes([Acknowledged(*one) for one in acknowledged], found)


# --- three processes ----------------------------------------------------------------------------------------------------


class Brokers:
    """Processes of the example."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self._settings = settings
        self._folder = folder
        self._flags = {
            f"STATECHANNEL_{group}__{name}".upper(): str(value)
            for group, values in QUICK.items()
            for name, value in values.items()
        }
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.urls: dict[str, str] = {}

    def start(self, *names: str) -> None:
        kafka = self._settings.kafka.bootstrap_servers
        environment = os.environ | self._flags | {"STATECHANNEL_CHANNEL__NAME": self._settings.channel.name}
        environment["PYTHONPATH"] = os.pathsep.join([str(EXAMPLES), str(ROOT)])
        for name in names:
            with (self._folder / f"{name}.log").open("ab") as log:
                self.processes[name] = subprocess.Popen(
                    [sys.executable, "-c", GATED, name, str(self._folder), kafka],
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    env=environment,
                    cwd=ROOT,
                )
        for name in names:
            said = self.processes[name].stdout
            line = said.readline()
            assert line.startswith(f"{name} serves at "), (line, (self._folder / f"{name}.log").read_text())
            self.urls[name] = line.split()[-1]

    def gate(self, name: str) -> Path:
        """While it exists, the writes of that process are under way."""
        return self._folder / f"gate-{name}"

    def signal(self, name: str, number: int) -> None:
        os.kill(self.processes[name].pid, number)

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait(WAIT_S)


class Writers:
    """Threads that write, one write at a time each, until it is enough."""

    def __init__(self, examples: Any, router: BlockingRouter) -> None:
        self.acknowledged: list[Acknowledged] = []
        self.failed: list[BaseException] = []
        self.clients = [examples.KvClient(router) for _ in range(WRITERS)]
        self._enough = threading.Event()
        self._threads = [
            threading.Thread(target=self._write, args=(client, number)) for number, client in enumerate(self.clients)
        ]

    def _write(self, client: Any, number: int) -> None:
        keys, count = Random(number), 0
        try:
            while not self._enough.is_set():
                key, value, count = keys.choice(KEYS), f"{number}-{count}", count + 1
                self.acknowledged.append(Acknowledged(key, value, client.put(key, value, WAIT_S)))
                time.sleep(0.005)
        except BaseException as error:
            self.failed.append(error)

    def wait_for(self, more: int) -> None:
        """So many more writes are acknowledged."""
        wanted = len(self.acknowledged) + more
        wait_until(lambda: self.failed or len(self.acknowledged) >= wanted, lambda: f"{len(self.acknowledged)} writes")
        assert self.failed == []

    @contextmanager
    def running(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._enough.set()
            for thread in self._threads:
                thread.join(2 * WAIT_S)


def route_of(router: BlockingRouter, key: str) -> Route:
    route: Any = None

    def known() -> bool:
        nonlocal route
        route = router.wait(key, 5.0, assign=True)
        return isinstance(route, Route)

    wait_until(known, lambda: f"{route}")
    return route


def owner_of(router: BlockingRouter, key: str) -> str:
    return route_of(router, key).broker


def transfer(settings: Settings, router: BlockingRouter, key: str, destination: str) -> None:
    """Ask for it until it is there: a busy broker refuses, or is too late, for a moment."""
    client, topics = access(settings)

    def there() -> bool:
        request = Request(
            str(ULID()), RequestCommand.TRANSFER.value, 0, {"name": key, "destination": destination}, "a test"
        )
        write_request(client, topics, request, answer_within_s=10.0, timeout_s=WAIT_S)
        ends_s = time.monotonic() + 5.0
        while time.monotonic() < ends_s:
            if owner_of(router, key) == destination:
                return True
            time.sleep(0.02)
        return False

    wait_until(there, lambda: f"{key} stays at {owner_of(router, key)}")


def send_late(url: str, number: int) -> socket.socket:
    """A write that will still be under way when its owner is paused."""
    address = httpx.URL(url)
    sent = socket.create_connection((address.host, address.port), WAIT_S)
    head = f"PUT /{KEYS[number]} HTTP/1.1\r\nHost: x\r\nX-Client: late-{number}\r\nX-Write: 1\r\nContent-Length: 4\r\n"
    sent.sendall(f"{head}Connection: close\r\n\r\nlate".encode())
    return sent


def status_of(sent: socket.socket) -> int:
    with sent, sent.makefile("rb") as answer:
        return int(answer.readline().split()[1])


@pytest.mark.kafka
def test_no_write_is_lost_or_taken_twice(examples, kafka: Kafka, topic_prefix: str, tmp_path: Path) -> None:
    settings = make_settings(kafka.bootstrap_servers, topic_prefix, **QUICK)
    brokers = Brokers(settings, tmp_path)
    try:
        brokers.start("b1", "b2", "b3")
        with BlockingRouter.open(settings, join_timeout_s=WAIT_S) as router:
            writers = Writers(examples, router)
            with writers.running():
                writers.wait_for(50)
                for number in range(6):
                    key = KEYS[number]
                    others = [name for name in brokers.urls if name != owner_of(router, key)]
                    transfer(settings, router, key, others[number % 2])
                    writers.wait_for(5)

                killed = owner_of(router, KEYS[0])
                brokers.signal(killed, signal.SIGKILL)
                wait_until(lambda: killed not in {owner_of(router, key) for key in KEYS})
                writers.wait_for(50)
                brokers.processes[killed].wait(WAIT_S)
                brokers.start(killed)

                paused = owner_of(router, KEYS[0])
                held = [number for number, key in enumerate(KEYS) if owner_of(router, key) == paused]
                gate = brokers.gate(paused)
                gate.touch()
                late = [send_late(brokers.urls[paused], number) for number in held]
                wait_until(lambda: list(tmp_path.glob(f"{gate.name}-*")), "no write is under way")
                brokers.signal(paused, signal.SIGSTOP)
                wait_until(lambda: paused not in {owner_of(router, key) for key in KEYS})
                writers.wait_for(50)
                brokers.signal(paused, signal.SIGCONT)
                gate.unlink()
                assert {status_of(sent) for sent in late} <= {307, 503}, "a replaced owner took a write"
                writers.wait_for(50)
            assert writers.failed == []
            found = {key: writers.clients[0].get(key, WAIT_S) for key in KEYS}
            assert mistakes(writers.acknowledged, found) == []
        for name in brokers.processes:
            brokers.signal(name, signal.SIGTERM)
        assert [process.wait(WAIT_S) for process in brokers.processes.values()] == [0, 0, 0]
    finally:
        brokers.end()
