"""The page of a console on a real Kafka, one cluster for all: what is done to it is named on the page, with its cause."""

from __future__ import annotations

import json
import secrets
import signal
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from statechannel.cli.main import app
from statechannel.clocks import now_ms
from tests.support.broker_cluster import WAIT_S, BrokerCluster, broker_cluster
from tests.support.browsers import browser_or_skip, running_browser
from tests.support.kafka_lanes import Kafka

BUNDLES = 24
"""So many that each broker has some."""


class SeenCluster:
    """A cluster, and the page of a console that follows it."""

    def __init__(self, cluster: BrokerCluster, page: Any) -> None:
        self.cluster = cluster
        self.page = page

    def shows(self, selector: str, text: str) -> None:
        self.page.locator(selector, has_text=text).first.wait_for()

    def owned(self, broker: str) -> list[str]:
        """The bundles of a broker, which are some."""
        bundles = [bundle for bundle, owner in self.cluster.owners().items() if owner == broker]
        assert bundles
        return bundles


@pytest.fixture(scope="module")
def seen(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeenCluster]:
    browser_or_skip()
    # One broker after the other is killed, which is not to pause repair.
    flags = ("repair.mass_loss_fraction=1",)
    made = BrokerCluster(kafka, f"page-{secrets.token_hex(4)}", tmp_path_factory.mktemp("page"), flags)
    with broker_cluster(made) as cluster:
        for broker in ("b1", "b2", "b3"):
            cluster.spawn(broker, ("observe.metrics_port=0",))
        console = cluster.begin("console", "--port", "0")
        with running_browser() as browser:
            assert console.stdout is not None
            page = browser.new_page()  # type: ignore[attr-defined]
            page.set_default_timeout(WAIT_S * 1_000)
            page.goto(json.loads(console.stdout.readline())["url"])
            result = SeenCluster(cluster, page)
            result.shows("#head div:has(dt:text-is('brokers alive'))", "3")
            cluster("namespace", "create", "t/n", "--bundles", str(BUNDLES), "--timeout", str(WAIT_S))
            cluster.look_up(list(cluster.owners()))
            result.shows("#head div:has(dt:text-is('wait for a lookup'))", "0")
            yield result
            page.close()
            console.send_signal(signal.SIGINT)
            console.communicate(timeout=WAIT_S)
            assert console.returncode == 0


def test_a_killed_leader_is_named_with_its_bundles_and_who_leads_now(seen: SeenCluster) -> None:
    cluster, page = seen.cluster, seen.page
    leader = cluster.leader()
    bundles = seen.owned(leader)
    seen.shows("#head", f"leader{leader}")
    seen.shows(f"#broker-rows tr:has-text('{leader}') td[data-label='bundles']", str(len(bundles)))
    cluster.kill(leader)
    seen.shows("#problem-rows", f"not back: {leader}")
    seen.shows("#event-rows", f"{leader} was lost")
    seen.shows("#event-rows", f"{len(bundles)} bundles of {leader} without owner: owner lost")
    seen.shows("#event-rows", "leads now")
    seen.shows("#between-rows", "Nothing: every bundle has one owner")
    page.fill("#search-name", bundles[0])
    page.press("#search-name", "Enter")
    seen.shows("#bundle-body", f"{leader} was lost")
    seen.shows("#bundle-body dd", str(cluster.owners()[bundles[0]]))
    page.click("#time-previous-event")
    seen.shows("#time-text", "As of")
    seen.shows("#light-text", "The past:")
    page.click("#time-live")


WATCH = """() => {
  window.seen = [];
  const parts = ["verdict", "problem-rows"].map((id) => document.getElementById(id));
  const note = () => window.seen.push([Date.now(), parts[0].dataset.health, parts[1].innerText]);
  parts.forEach((part) => new MutationObserver(note).observe(part, { subtree: true, childList: true, attributes: true }));
  note();
}"""
BESIDE_MS = 2_000
"""Two that look at the same moment differ by the time in which a heartbeat is read, on a busy machine."""


def test_a_killed_owner_is_named_while_the_leader_goes_on(seen: SeenCluster) -> None:
    """Meanwhile the page, `status`, `doctor` and `/readyz` say the same."""
    cluster, page, asked = seen.cluster, seen.page, list[tuple[int, int, dict[str, Any], bool]]()
    leader = cluster.leader()
    owner = next(row["broker"] for row in cluster.alive() if row["broker"] != leader)
    address = next(row["http"] for row in cluster.alive() if row["broker"] == leader)
    bundles = seen.owned(owner)
    page.evaluate(WATCH)
    killed_ms = now_ms()
    cluster.kill(owner)
    while not asked or not any(
        row["reason"] == "broker-lost" and owner in row["message"] for row in asked[-1][2]["problems"]
    ):
        began_ms = now_ms()
        assert httpx.get(f"{address}/readyz").status_code == HTTPStatus.OK
        status = cluster("status")
        named = any(row["reason"].startswith("broker-") and owner in row["message"] for row in status["problems"])
        asked.append((began_ms, now_ms(), status, named))
        page.wait_for_timeout(500)
    examined = CliRunner().invoke(app, ["doctor", *cluster.place, "--output", "json"]).stdout
    assert any(owner in finding["what"] for finding in json.loads(examined)["findings"])
    words = page.evaluate("window.seen")
    for first_ms, last_ms, status, named in asked:
        before = [word for word in words if word[0] < first_ms - BESIDE_MS]
        beside = [*before[-1:], *(word for word in words if first_ms - BESIDE_MS <= word[0] <= last_ms + BESIDE_MS)]
        assert status["health"] in [health for _, health, _ in beside]
        assert named in [owner in text for _, _, text in beside]
    print(
        "ms from kill -9 to the first word on the page:", next(at for at, _, text in words if owner in text) - killed_ms
    )
    seen.shows("#problem-rows", f"{owner}, last heard")  # perhaps beside others that were killed before
    seen.shows("#event-rows", f"{len(bundles)} bundles of {owner} without owner: owner lost")
    seen.shows("#head", f"leader{leader}")
    seen.shows("#between-rows", "Nothing: every bundle has one owner")
