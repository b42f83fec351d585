"""The page of a console on a real Kafka: the broker that leads and owns is killed, and the page names it, and what followed."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker_cluster import WAIT_S, BrokerCluster, broker_cluster
from tests.support.browsers import browser_or_skip, running_browser
from tests.support.kafka_lanes import Kafka

NAMESPACE = "t/n"


@pytest.fixture
def cluster(kafka: Kafka, topic_prefix: str, tmp_path: Path) -> Iterator[BrokerCluster]:
    browser_or_skip()
    with broker_cluster(BrokerCluster(kafka, topic_prefix, tmp_path, ())) as made_cluster:
        made_cluster.start("b1", "b2", "b3")
        yield made_cluster


def test_a_killed_leader_is_named_with_its_bundles_and_who_leads_now(cluster: BrokerCluster) -> None:
    leader = cluster.leader()
    bundles = cluster.create(NAMESPACE, 8, leader)
    console = cluster.begin("console", "--port", "0")
    assert console.stdout is not None
    url = json.loads(console.stdout.readline())["url"]
    with running_browser() as browser:
        page = browser.new_page()  # type: ignore[attr-defined]
        page.set_default_timeout(WAIT_S * 1_000)
        page.goto(url)

        def shows(selector: str, text: str) -> None:
            page.locator(selector, has_text=text).first.wait_for()

        shows("#problems", "Nothing.")
        shows("#head", f"leader{leader}")
        shows(f"#broker-rows tr:has-text('{leader}') td:nth-child(3)", "8")
        cluster.kill(leader)
        shows("#problem-rows", f"{leader} is lost")
        shows("#event-rows", f"{leader} was lost")
        shows("#event-rows", f"8 bundles of {leader} without owner: owner lost")
        shows("#event-rows", "leads now")
        shows("#between-rows", "Nothing: every bundle has one owner")
        page.fill("#search-name", bundles[0])
        page.press("#search-name", "Enter")
        shows("#bundle-body", f"{leader} was lost")
        now = cluster.owners()[bundles[0]]
        shows("#bundle-body dd", now)
        page.click("#time-previous-event")
        shows("#time-text", "As of")
    console.send_signal(signal.SIGINT)
    console.communicate(timeout=WAIT_S)
    assert console.returncode == 0
