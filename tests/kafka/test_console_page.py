"""Twelve incidents on a real Kafka, one cluster for all: the page, `status`, `doctor` and `/readyz` say the same of each."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http import HTTPStatus
from threading import Thread
from typing import IO, Any, NamedTuple

import httpx
import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from statechannel.broker.observe.health import OWN
from statechannel.cli.main import app
from statechannel.clocks import now_ms
from statechannel.conditions.facts import ChannelHealth
from statechannel.conditions.table import CONDITIONS
from statechannel.embedded import KafkaServer
from statechannel.kafka.topic_policy import ChannelTopics
from statechannel.protocol.log import Topic
from tests.support.broker_cluster import WAIT_S, BrokerCluster, broker_cluster
from tests.support.browsers import browser_or_skip, running_browser
from tests.support.kafka_lanes import Kafka, embedded_options, serve_first

BUNDLES, NAMESPACE = 16, "t/n"
JUNK = 300
EACH_S = 0.5
BESIDE_MS = 2_000
"""Two that look at the same moment differ by the time in which a heartbeat is read, on a busy machine."""
LASTS_MS = 3_000
"""Pages read side topics once a second, and status and doctor read them as they are asked."""
FLAGS = (
    "membership.interval_s=1",
    "membership.expiry_s=6",
    "safe_mode.after_s=3",
    "repair.mass_loss_window_s=2",
    "observe.in_flight_slow_s=2",
    "hooks.deadline_s=50",
    "repair.in_flight_limit_s=100",
    "observe.metrics_port=0",
    "http.port=0",
    "http.page_topics_s=1",
    "extensions.balancer.source=simulated",
    "extensions.balancer.balancing=false",
    "extensions.balancer.splitting=false",
)
SLOW, ODD = "b4", "b5"
PROGRAM = """
import asyncio, pathlib
import statechannel.cli.broker as broker
from statechannel.cli.main import main
from statechannel.settings import tree

async def waits(*_):
    while not pathlib.Path("released").exists():
        await asyncio.sleep(0.1)

async def fails(*_):
    raise OSError("no disk")

"""
PROGRAMS = {
    SLOW: "broker.SimulatedHooks.on_release = waits; main()",
    ODD: "broker.SimulatedHooks.on_own = fails; tree.metadata.version = lambda _: '9.9.9'; main()",
}
"""One whose hook hangs until there is a file; and one of another version, which takes no bundle."""
OBSERVE = """async () => {
  const { asOf } = await import(new URL("page/parts.js", location.href));
  const root = document.documentElement.dataset, all = { subtree: true, childList: true, attributes: true };
  const parts = ["verdict", "problem-rows", "broker-rows"].map((id) => document.getElementById(id));
  const rowsOf = (part, row) => [...part.querySelectorAll(row)];
  const note = () => window.seen.push([
    root.stale === "yes" ? Date.now() : asOf(),
    root.stale === "yes" ? "stale" : parts[0].dataset.health,
    Object.fromEntries(rowsOf(parts[1], "li").map((row) => [row.dataset.kind, row.innerText])),
    Object.fromEntries(rowsOf(parts[2], "tbody tr").map(({ children }) => [children[1]?.innerText, children[2]?.innerText]))
  ]);
  window.seen = [];
  parts.forEach((part) => new MutationObserver(note).observe(part, all));
  note();
}"""
OF_STATUS = {kind.code for kind in CONDITIONS if kind.severity.verdict is not ChannelHealth.HEALTHY}
OF_VIEW = {
    "status": OF_STATUS,
    "watch": OF_STATUS,
    "doctor": OF_STATUS | {"drain-blocked", "versions"},
    "readyz": set(OWN),
}
"""The conditions that a view has if they hold; the page has all."""


class PageState(NamedTuple):
    """What a page shows from a moment on, by the clock of the process that serves it."""

    at_ms: int
    health: str
    problems: dict[str, str]  # texts by code
    brokers: dict[str, str]  # state of each, as its table says it


class Asked(NamedTuple):
    """An answer of another view."""

    began_ms: int
    ended_ms: int
    health: str | None  # None: it does not say
    codes: set[str]
    ready: dict[str, bool]  # whether brokers answer that they are; without those that did not answer in time


class SeenCluster(BrokerCluster):
    """A cluster, the pages of a console and of a broker, and what else there is to ask."""

    kafka: KafkaServer
    page_at: str
    addresses: dict[str, str]
    is_away = False
    pages: dict[str, Any]

    def launch(self, *names: str) -> None:
        """Start brokers, and wait until they take bundles."""
        for name in names:
            command = [sys.executable, "-c", PROGRAM + PROGRAMS.get(name, "main()"), "broker", "run", "--id", name]
            with (self.folder / f"{name}.log").open("ab") as log:
                self.brokers[name] = subprocess.Popen([*command, *self.place], stdout=log, stderr=log, cwd=self.folder)
        alive: list[dict[str, Any]] = []

        def are_there() -> bool:
            alive[:] = self.alive()
            return set(names) <= {row["broker"] for row in alive}

        (self.look_until if self.pages else self.wait)(are_there)
        self.addresses = {row["broker"]: row["http"] for row in alive}

    def open_pages(self, browser: Any, console_url: str) -> None:
        leader = self.leader()
        self.page_at = next(row["broker"] for row in self.alive() if row["broker"] not in (leader, SLOW))
        urls = {
            "console": console_url,
            "broker": next(row["api"] for row in self.alive() if row["broker"] == self.page_at),
        }
        self.pages = {name: browser.new_page() for name in urls}
        self.shown: dict[str, list[PageState]] = {name: [] for name in urls}
        self.asked: dict[str, list[Asked]] = {view: [] for view in OF_VIEW}
        for name, page in self.pages.items():
            page.set_default_timeout(WAIT_S * 1_000)
            page.goto(urls[name])
            page.locator("html[data-ready=yes]").wait_for(state="attached")
            page.evaluate(OBSERVE)

    # --- one look at every view ------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Ask each, at most twice a second."""
        began_s = time.monotonic()
        for view, ask in (("readyz", self._readyz), ("status", self._status), ("doctor", self._doctor)):
            began_ms = now_ms()
            health, codes, ready = ask()
            self.asked[view].append(Asked(began_ms, now_ms(), health, codes, ready))
        self.pages["console"].wait_for_timeout(max(1, 1_000 * (EACH_S - (time.monotonic() - began_s))))
        for name, page in self.pages.items():
            self.shown[name] += [PageState(*row) for row in page.evaluate("window.seen.splice(0)")]

    def _asked(self, *words: str) -> Any:
        brief = ("--set", "kafka.command_timeout_s=2") if self.is_away else ()
        return CliRunner().invoke(app, [*words, *self.place, *brief, "--output", "json"])

    def _status(self) -> tuple[str | None, set[str], dict[str, bool]]:
        result = self._asked("status")
        if result.exit_code:
            assert self.is_away, result.stderr
            return "unknown", {"kafka-silent"}, {}
        answer = json.loads(result.stdout)
        return answer["health"], {row["reason"] for row in answer["problems"]}, {}

    def watch(self, lines: IO[str]) -> None:
        """Note what `status --watch` says, by the log's clock."""
        for line in lines:
            answer = json.loads(line)
            codes = {row["reason"] for row in answer["problems"]}
            self.asked["watch"].append(Asked(answer["at_ms"], answer["at_ms"], answer["health"], codes, {}))

    def _doctor(self) -> tuple[str | None, set[str], dict[str, bool]]:
        answer = json.loads(self._asked("doctor", "--timeout", "2" if self.is_away else "60").stdout)
        codes = {row["reason"] for row in answer["findings"] if row["reason"]}
        silent = any(row["check"] == "kafka" and row["severity"] == "critical" for row in answer["findings"])
        return None, codes | ({"kafka-silent"} if silent else set()), {}

    def _readyz(self) -> tuple[str | None, set[str], dict[str, bool]]:
        codes, ready = set[str](), dict[str, bool]()
        for name, address in self.addresses.items():
            try:
                answer = httpx.get(f"{address}/readyz", timeout=1)
            except httpx.ConnectError:
                ready[name] = False
            except httpx.TransportError:
                continue
            else:
                ready[name] = answer.status_code == HTTPStatus.OK
                codes |= {row["code"] for row in answer.json()["conditions"]}
        return None, codes - ({"safe-mode"} if "kafka-silent" in codes else set()), ready

    # --- what they say ---------------------------------------------------------------------------------------------------

    def live(self) -> dict[str, list[PageState]]:
        """What the pages show whose servers live."""
        return {name: rows for name, rows in self.shown.items() if rows and rows[-1].health != "stale"}

    def say(self, codes: str) -> bool:
        """Whether every view has one of the conditions now, if it has such ones."""
        wanted = set(codes.split())
        views = [rows[-1] for view, rows in self.asked.items() if rows and view != "readyz" and wanted & OF_VIEW[view]]
        return all(wanted & asked.codes for asked in views) and all(
            wanted & rows[-1].problems.keys() for rows in self.live().values()
        )

    def are_calm(self) -> bool:
        """Whether nothing is wrong but that the machine is slow."""
        codes = [
            self.asked["status"][-1].codes,
            *(rows[-1].problems.keys() & OF_STATUS for rows in self.live().values()),
        ]
        return set().union(*codes) <= {"loop-blocked"}

    def look_until(self, done: Callable[[], bool]) -> None:
        ends_s = time.monotonic() + WAIT_S
        self.look()
        while not done():
            newest = {name: rows[-1:] for name, rows in {**self.shown, **self.asked}.items()}
            assert time.monotonic() < ends_s, (newest, self.logs())
            self.look()

    def disagreements(self) -> list[str]:
        """What a page and another view said otherwise for a while, in answers one after the other."""
        found: list[str] = []
        for page, states in self.live().items():
            for view, answers in self.asked.items():
                since_ms: dict[str, int] = {}
                for asked in answers:
                    first_ms, last_ms = asked.began_ms - BESIDE_MS, asked.ended_ms + BESIDE_MS
                    before = [state for state in states if state.at_ms < first_ms][-1:]
                    beside = [*before, *(state for state in states if first_ms <= state.at_ms <= last_ms)]
                    is_known = beside and all(state.health != "stale" for state in beside)
                    differing = _differing(view, asked, beside) if is_known else set()
                    since_ms = {text: since_ms.get(text, asked.began_ms) for text in differing}
                    lasting = [text for text, began_ms in since_ms.items() if began_ms < asked.began_ms - LASTS_MS]
                    found += [f"{text}: {view}, the page of the {page}, {asked.ended_ms}" for text in lasting]
        return found

    def forget(self) -> None:
        """All but the newest."""
        for rows in (*self.shown.values(), *self.asked.values()):
            del rows[:-1]  # type: ignore[attr-defined]

    # --- what is done to it ----------------------------------------------------------------------------------------------

    def bundle_of(self, broker: str) -> str:
        """A bundle that it owns; if it owns none, it gets one."""
        owners = self.owners()
        bundle = next((bundle for bundle, owner in owners.items() if owner == broker), None)
        if bundle is None:
            bundle = next(iter(owners))
            self("transfer", bundle, "--dest", broker, "--yes")
        return bundle

    def other(self) -> str:
        """One that owns bundles, and neither leads nor serves the page."""
        name = next(row["broker"] for row in self.alive() if row["broker"] not in (self.leader(), self.page_at))
        self.bundle_of(name)
        return str(name)


def _differing(view: str, asked: Asked, beside: list[PageState]) -> set[str]:
    compared = OF_VIEW[view]
    if "kafka-silent" in asked.codes and view != "readyz":
        compared = {"kafka-silent"}  # all else is as of before
    ever = set[str]().union(*(state.problems for state in beside)) & compared
    always = set.intersection(*(set(state.problems) for state in beside)) & compared
    found = {f"{code} is not on the page" for code in asked.codes & compared - ever}
    if view != "readyz":  # a broker knows its own alone
        found |= {f"{code} is on the page only" for code in always - asked.codes}
    healths = {state.health for state in beside}
    if asked.health is not None and asked.health not in healths:
        found.add(f"{asked.health}, and {sorted(healths)} on the page")
    for name, is_ready in asked.ready.items():
        states = {state.brokers.get(name, "") for state in beside}
        if is_ready not in {state.startswith("alive") and "silent" not in state for state in states}:
            found.add(f"{name} is {'' if is_ready else 'not '}ready, and {sorted(states)} on the page")
    return found


# --- the incidents: each is brought about, and gives what ends it ---------------------------------------------------------

End = Callable[[], object]


def junk(seen: SeenCluster) -> End:
    producer = Producer({"bootstrap.servers": seen.bootstrap})
    for number in range(JUNK):
        producer.produce(ChannelTopics(seen.channel).names[Topic.CHANNEL], b"\xff junk %d" % number, b"t/n", 0)
    assert producer.flush(WAIT_S) == 0
    return lambda: None


def split(seen: SeenCluster) -> End:
    seen("split", seen.bundle_of(seen.page_at), "--yes")
    return lambda: None


def other_version(seen: SeenCluster) -> End:
    seen.launch(ODD)
    return lambda: None


def declined_often(seen: SeenCluster) -> End:
    bundle = seen.bundle_of(seen.page_at)
    for _ in range(5):
        assert "no disk" in seen.error("transfer", bundle, "--dest", ODD, "--force", "--yes", code=3)
        seen.look()
        seen("lookup", bundle)
    for words in (("why", bundle), ("audit", "history", bundle)):
        assert "no disk" in json.dumps(seen(*words))
    assert "hook.failed" in (seen.folder / f"{ODD}.log").read_text(encoding="utf-8")

    def end() -> None:
        seen.brokers[ODD].terminate()
        seen.look_until(lambda: seen.brokers[ODD].poll() is not None)

    return end


def stuck_hook(seen: SeenCluster) -> End:
    moving = seen.begin("transfer", seen.bundle_of(SLOW), "--dest", seen.page_at, "--yes")

    def end() -> None:
        (seen.folder / "released").touch()
        seen.look_until(lambda: moving.poll() is not None)

    return end


def paused(seen: SeenCluster) -> End:
    name = seen.other()
    seen.brokers[name].send_signal(signal.SIGSTOP)

    def end() -> None:
        seen.brokers[name].send_signal(signal.SIGCONT)
        seen.look_until(lambda: seen.are_calm() or seen.brokers[name].poll() is not None)
        if seen.brokers[name].poll() is not None:  # it was away for so long that it counts as lost
            seen.launch(name)

    return end


def drain_blocked(seen: SeenCluster) -> End:
    broker = seen.other()
    bundle = seen.bundle_of(broker)  # and one that moves: a drain that moves nothing leaves no cordon
    movable = next(name for name, owner in seen.owners().items() if name != bundle and owner != broker)
    seen("transfer", movable, "--dest", broker, "--yes")
    seen("policy", "set", "pin", bundle, broker)
    draining = seen.begin("drain", broker, "--yes")

    def end() -> None:
        draining.wait(WAIT_S)
        seen("uncordon", broker)
        seen("policy", "delete", "pin", bundle)

    return end


def leader_killed(seen: SeenCluster) -> End:
    leader = seen.leader()
    seen.kill(leader)
    return lambda: seen.launch(leader)


def owner_killed(seen: SeenCluster) -> End:
    """It is decommissioned."""
    owner = seen.other()
    seen.kill(owner)

    def end() -> None:
        seen("broker", "dismiss", owner, "--yes")
        del seen.addresses[owner]

    return end


def mass_loss(seen: SeenCluster) -> End:
    lost = [row["broker"] for row in seen.alive() if row["broker"] != seen.page_at]
    for name in lost:
        seen.brokers[name].kill()

    def end() -> None:
        seen("repair", "resume", "--yes")
        seen.look_until(lambda: None not in seen.owners().values() and not {*seen.owners().values()} & {*lost})
        seen.launch(*lost)

    return end


def kafka_away(seen: SeenCluster) -> End:
    os.kill(seen.kafka.pid, signal.SIGSTOP)
    seen.is_away = True

    def end() -> None:
        os.kill(seen.kafka.pid, signal.SIGCONT)
        seen.is_away = False
        wrong = {"broker-lost", "broker-suspect"}
        assert not any(wrong & state.problems.keys() for states in seen.shown.values() for state in states)

    return end


def server_of_the_page_killed(seen: SeenCluster) -> End:
    page, links = seen.pages["broker"], seen.pages["broker"].locator("#elsewhere a")
    seen.kill(seen.page_at)
    page.locator("html[data-stale=yes]").wait_for(state="attached")
    assert page.locator("#verdict").get_attribute("data-health") == "unknown"
    links.first.wait_for()

    def end() -> None:
        links.first.click()
        page.locator(f"#problem-rows li:has-text('{seen.page_at}')").wait_for()
        page.evaluate(OBSERVE)
        seen.launch(seen.page_at)

    return end


INCIDENTS: tuple[tuple[Callable[[SeenCluster], End], str | None], ...] = (
    (split, None),
    (other_version, "versions"),
    (declined_often, "flapping"),
    (stuck_hook, "slow-operation"),
    (paused, "broker-suspect broker-lost"),
    (drain_blocked, "drain-blocked"),
    (junk, "junk"),
    (leader_killed, "broker-lost"),
    (owner_killed, "broker-lost"),
    (mass_loss, "repair-paused"),
    (kafka_away, "kafka-silent"),
    (server_of_the_page_killed, "broker-lost"),
)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeenCluster]:
    browser_or_skip()
    with ExitStack() as stack:
        server = stack.enter_context(KafkaServer(tmp_path_factory.mktemp("kafka"), options=embedded_options()))
        serve_first(server.pid)
        kafka = Kafka(server.bootstrap_servers, "an embedded broker of its own")
        channel, folder = f"page-{secrets.token_hex(4)}", tmp_path_factory.mktemp("page")
        cluster = stack.enter_context(broker_cluster(SeenCluster(kafka, channel, folder, FLAGS)))
        cluster.kafka, cluster.pages = server, {}
        console = cluster.begin("console", "--port", "0")
        browser = stack.enter_context(running_browser())
        watching = cluster.begin("status", "--watch", "--every", str(EACH_S))
        url = json.loads(console.stdout.readline())["url"]
        cluster.launch("b1", "b2", "b3", SLOW)
        cluster("namespace", "create", NAMESPACE, "--bundles", str(BUNDLES), "--timeout", str(WAIT_S))
        cluster.look_up(list(cluster.owners()))
        cluster.wait(lambda: None not in cluster.owners().values())
        cluster.open_pages(browser, url)
        reader = Thread(target=cluster.watch, args=(watching.stdout,), daemon=True)
        reader.start()
        cluster.look_until(cluster.are_calm)
        yield cluster
        for process in (console, watching):
            process.send_signal(signal.SIGINT)
        reader.join(WAIT_S)
        for process in (console, watching):
            _, errors = process.communicate(timeout=WAIT_S)
            assert (process.returncode, "Traceback" in errors) == (0, False)


@pytest.mark.parametrize(("happen", "code"), INCIDENTS, ids=lambda value: getattr(value, "__name__", None))
def test_all_views_agree_each_half_second(
    seen: SeenCluster, happen: Callable[[SeenCluster], End], code: str | None
) -> None:
    seen.forget()
    end = happen(seen)
    if code is not None:
        seen.look_until(lambda: seen.say(code))
    end()
    seen.look_until(seen.are_calm)
    assert seen.disagreements() == []
