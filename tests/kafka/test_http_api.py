"""The admin API of brokers and of a console on a real Kafka: it answers as the commands do, and acts once."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from statechannel.audit.transfer.export_file import read_export
from statechannel.cli.kit.connection import connection_of
from statechannel.errors import ExitCode
from statechannel.queries.live_log import ExportBounds, export_live
from statechannel.settings import load
from tests.support.broker_cluster import COMMAND, WAIT_S, BrokerCluster, broker_cluster
from tests.support.generated_clients import DRIVEN, driven, python_client, typescript_client
from tests.support.kafka_lanes import Kafka

NAMESPACE = "t/n"
FLAGS = ("http.port=0", "http.open_role=force", "http.requests_per_s=10000", "extensions.balancer.enabled=true")
SERVED = re.compile(r"http-served.*?url\W+(http://[0-9.:]+)")
CLIENT = {"Statechannel-Client": "ann"}


class ApiCluster(BrokerCluster):
    """A cluster whose brokers serve the admin API."""

    def api(self, broker: str) -> httpx.Client:
        urls: list[str] = []

        def served() -> bool:
            urls[:] = SERVED.findall((self.folder / f"{broker}.log").read_text())
            return bool(urls)

        self.wait(served)
        return httpx.Client(base_url=urls[-1], headers=CLIENT, timeout=WAIT_S)


@pytest.fixture
def cluster(kafka: Kafka, topic_prefix: str, tmp_path: Path) -> Iterator[ApiCluster]:
    with broker_cluster(ApiCluster(kafka, topic_prefix, tmp_path, FLAGS)) as made_cluster:
        made_cluster.start("b1", "b2")
        yield made_cluster


def pages(client: httpx.Client, path: str, name: str, **query: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    after: str | None = ""
    while after is not None:
        page = client.get(path, params={**query, "after": after, "limit": 3}).raise_for_status().json()
        rows += page[name]
        after = page["next"]
    return rows


def without(document: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in names}


def ask_the_log(cluster: ApiCluster, get: Callable[..., Any], bundle: str) -> None:
    """The questions of `audit`, of a moment that both ways see whole; and of a part of the log, which says that it is one."""
    end = max(cluster("audit")["end_offsets"].values()) - 1
    whole = {"complete": True, "stopped_at": {}}
    for path, command, rows, query in (
        ("/v1/audit", ("audit", "--as-of", str(end)), None, {"as_of": str(end)}),
        ("/v1/audit/owner", ("lookup", bundle, "--as-of", str(end)), None, {"name": bundle, "as_of": str(end)}),
        ("/v1/audit/history", ("audit", "history", bundle), "history", {"name": bundle, "limit": 1_000}),
        ("/v1/audit/gaps", ("audit", "gaps"), "gaps", {"limit": 1_000}),
        ("/v1/audit/diff", ("audit", "diff", "3", str(end)), "differences", {"earlier": "3", "later": str(end)}),
    ):
        asked, answered = cluster(*command), get(path, **query)
        assert answered["log"] == whole
        assert answered.get("rows_left_out", 0) == 0
        assert rows is None or len(answered[rows]) == len(asked[rows])
        moving = ("digest", "records", "end_offsets", "notes", "log", "rows_left_out", "unheard")
        assert without(answered, *moving) == without(asked, *moving), path
    newest = get("/v1/audit/history", name=bundle, limit=1)
    assert newest["rows_left_out"] == len(get("/v1/audit/history", name=bundle)["history"]) - 1


def ask_both_ways(cluster: ApiCluster, client: httpx.Client, bundle: str) -> None:
    """Every question of the API, as a command and over HTTP; only what is said of the reading itself may differ."""

    def get(path: str, **query: Any) -> Any:
        return client.get(path, params=query).raise_for_status().json()

    def settled(command: Any, http: Any) -> None:
        """A broker's view is as new as a command's a moment later."""
        cluster.wait(lambda: command() == http(), timeout_s=60)

    listed = ("bundles", "--namespace", NAMESPACE)
    settled(
        lambda: [without(row, "declined_by") for row in cluster(*listed)["bundles"]],
        lambda: pages(client, "/v1/bundles", "bundles", namespace=NAMESPACE),
    )
    row = next(row for row in cluster(*listed)["bundles"] if row["bundle"] == bundle)
    assert get(f"/v1/bundles/{bundle}") == without(row, "declined_by")
    assert pages(client, "/v1/bundles", "bundles", broker=row["owner"]) == [
        without(other, "declined_by") for other in cluster("bundles", "--broker", row["owner"])["bundles"]
    ]
    assert pages(client, "/v1/namespaces", "namespaces") == cluster("namespace", "list")["namespaces"]
    assert get(f"/v1/namespaces/{NAMESPACE}") == without(cluster("namespace", "show", NAMESPACE), "tentative")

    moving = ("heard_ago_ms", "lag_records", "blocked", "remarks", "cordoned")
    settled(
        lambda: [without(member, *moving) for member in cluster("brokers")["brokers"]],
        lambda: [without(member, *moving) for member in get("/v1/brokers")["brokers"]],
    )
    brokers, shown = get("/v1/brokers"), cluster("brokers")
    assert (brokers["leader"], brokers["leader_api"]) == (shown["leader"], shown["leader_api"])
    assert {row["api"] for row in shown["brokers"] if row["broker"] == shown["leader"]} == {get("/v1")["leader_api"]}
    assert httpx.get(f"{shown['leader_api']}/v1", timeout=WAIT_S).json()["broker"] == shown["leader"]
    assert get("/v1/lookup", name=bundle) == without(
        cluster("lookup", bundle, "--read-only"), "operation", "executed_by"
    )
    for path, command, query in (
        ("/v1/policies", ("policy", "list"), {}),
        ("/v1/overrides", ("override", "list"), {}),
        ("/v1/operations", ("operation", "list"), {}),
        ("/v1/why", ("why", bundle), {"name": bundle}),
    ):
        settled(
            lambda command=command: cluster(*command),
            lambda path=path, query=query: without(get(path, **query), "notes"),
        )
    settled(
        lambda: without(cluster("decisions"), "since_ms"),
        lambda: without(get("/v1/decisions", limit=1_000), "since_ms", "notes"),
    )
    decisions = get("/v1/decisions", limit=1_000)["decisions"]
    if decisions:
        identifier = decisions[-1]["id"]
        shown = cluster("decisions", "show", identifier)
        assert without(get(f"/v1/decisions/{identifier}"), "notes") == shown
    ask_the_log(cluster, get, bundle)
    alive = {row["broker"] for row in cluster.alive()}
    cluster.wait(lambda: {row["broker"] for row in get("/v1/loads")["brokers"]} == alive)
    why_not = cluster("why-not", bundle)
    assert (
        without(get("/v1/why-not", name=bundle), "notes", "messages", "verdicts").keys()
        == without(why_not, "messages", "verdicts").keys()
    )


def follow_every_source(first: httpx.Client, second: httpx.Client) -> None:
    """Decisions and events of the brokers, and the rest of them at another broker."""

    def follow(client: httpx.Client, since: str, done: Callable[[list[tuple[str, str, Any]]], bool]) -> list[Any]:
        came: list[tuple[str, str, Any]] = []
        query = {"only": "decision,event", "since": since}
        with client.stream("GET", "/v1/changes", params=query) as stream:
            fields: dict[str, str] = {}
            for line in stream.iter_lines():
                name, _, value = line.partition(": ")
                fields[name] = value
                if not line and "id" in fields:
                    came.append((fields["id"], fields["event"], json.loads(fields["data"])))
                    fields = {}
                    if done(came):
                        return came
        raise AssertionError(came)

    def has_both(came: list[tuple[str, str, Any]]) -> bool:
        kinds = {event["kind"] for _, name, data in came if name == "event" for event in data["events"]}
        return {"started", "leader"} <= kinds and any(name == "decision" for _, name, _ in came)

    # Two brokers may read several topics in different turns; each topic is in its own order.
    came = follow(first, "decision:0,event:0", has_both)
    assert {name for _, name, _ in came} == {"decision", "event"}

    def of_topic(items: list[tuple[str, str, Any]], topic: str) -> list[Any]:
        return [data for _, name, data in items if name == topic]

    left = {topic: of_topic(came[1:], topic) for topic in ("decision", "event")}
    rest = follow(second, came[0][0], lambda again: all(len(of_topic(again, name)) >= len(left[name]) for name in left))
    for topic, items in left.items():
        assert of_topic(rest, topic)[: len(items)] == items


def test_both_ways_and_once(cluster: ApiCluster, tmp_path: Path) -> None:
    with cluster.api("b1") as first, cluster.api("b2") as second, ThreadPoolExecutor(8) as pool:
        waiting = {"Prefer": "wait=60"}
        created = first.post("/v1/namespaces", json={"namespace": NAMESPACE, "bundles": 8}, headers=waiting)
        assert created.status_code == 200, created.text
        bundles = [row["bundle"] for row in pages(second, "/v1/bundles", "bundles", namespace=NAMESPACE)]
        cluster.wait(lambda: len(pages(second, "/v1/bundles", "bundles", namespace=NAMESPACE)) == 8)
        bundles = [row["bundle"] for row in pages(second, "/v1/bundles", "bundles", namespace=NAMESPACE)]
        for name in bundles:
            answer = second.post("/v1/lookup", json={"name": name}, headers=waiting)
            assert answer.json()["outcome"] == "owned", answer.text
        cluster.wait(lambda: all(cluster.owners().values()))
        bundle = bundles[0]
        row = first.get(f"/v1/bundles/{bundle}")
        destination = "b2" if row.json()["owner"] == "b1" else "b1"

        # A stream sees what is done from here on, and an older one is given what came before.
        position = ",".join(f"{part}:{at + 1}" for part, at in first.get("/v1").json()["positions"].items())
        body = {"destination": destination, "reason": "by test"}
        dry = second.post(f"/v1/bundles/{bundle}/transfer", json={**body, "dry_run": True})
        assert dry.json()["would"], dry.text
        headers = {"Idempotency-Key": "move-1", "If-Match": row.headers["etag"], **waiting}

        def move(client: httpx.Client) -> httpx.Response:
            return client.post(f"/v1/bundles/{bundle}/transfer", json=body, headers=headers)

        answers = list(pool.map(move, [first, second] * 4))
        assert {answer.status_code for answer in answers} == {200}, [answer.text for answer in answers]
        (operation,) = {answer.json()["operation"] for answer in answers}
        history = cluster("audit", "history", bundle)["history"]
        releases = [record for record in history if record["operation"] == operation and record["state"] == "Releasing"]
        assert len([record for record in releases if record["verdict"] == "accepted"]) == 1
        shown = cluster("operation", "show", operation)
        assert shown["by"] == "ann@127.0.0.1"
        assert (shown["reason"], shown["destination"]) == ("by test", destination)
        known = row.json()["generation"]  # that of before the move
        cluster.error("unload", bundle, "--if-generation", str(known), "--yes", code=ExitCode.REJECTED)

        events = []
        with first.stream("GET", "/v1/changes", params={"since": position}) as stream:
            for line in stream.iter_lines():
                if line.startswith("data: "):
                    events.append(json.loads(line[6:]))
                    if events[-1]["state"] == "Assigned" and events[-1]["key"] == bundle:
                        break
        assert [event["to"] for event in events if event["key"] == bundle][-1] == destination
        with second.stream("GET", "/v1/changes", headers={"Last-Event-ID": "0"}) as stream:
            lines = iter(stream.iter_lines())
            keys = []
            while NAMESPACE not in keys or bundle not in keys:
                line = next(lines)
                keys += [json.loads(line[6:])["key"]] if line.startswith("data: ") else []
        follow_every_source(first, second)
        ask_both_ways(cluster, second, bundle)

        # The broker that has taken the call dies: the same call to another one acts once.
        victim = "b1" if cluster.leader() == "b2" else "b2"
        taken, other = (first, second) if victim == "b1" else (second, first)
        again = {"Idempotency-Key": "split-1", **waiting}
        name = next(name for name, owner in cluster.owners().items() if owner != victim and name != bundle)
        begun = taken.post(f"/v1/bundles/{name}/split", json={}, headers={"Idempotency-Key": "split-1"})
        assert begun.status_code in (200, 202), begun.text
        cluster.kill(victim)
        ended = other.post(f"/v1/bundles/{name}/split", json={}, headers=again)
        assert (ended.status_code, ended.json()["operation"]) == (200, begun.json()["operation"]), ended.text
        history = cluster("audit", "history", name)["history"]
        splits = [record for record in history if record["state"] == "Splitting" and record["verdict"] == "accepted"]
        assert len(splits) == 1
        refused = other.post(f"/v1/bundles/{name}/unload", json={}, headers=again)
        assert refused.json()["reason"] == "idempotency-key-reused"

        # A console is no broker, and serves the same.
        console = subprocess.Popen(
            [
                *COMMAND,
                "console",
                "--port",
                "0",
                "--set",
                "http.audit_records_max=5",
                *cluster.place,
                "--output",
                "json",
            ],
            stdout=subprocess.PIPE,
            stderr=(tmp_path / "console.err").open("w"),
            text=True,
        )
        cluster.commands.append(console)
        assert console.stdout is not None
        url = json.loads(console.stdout.readline())["url"]
        with httpx.Client(base_url=url, headers=CLIENT, timeout=WAIT_S) as client:
            assert client.get("/v1").json()["broker"] is None
            assert client.get(f"/v1/bundles/{bundle}").json() == other.get(f"/v1/bundles/{bundle}").json()
            part = client.get("/v1/audit").json()
            assert (part["records"], part["log"]) == (5, {"complete": False, "stopped_at": {"0": 5}})
            drained = client.request(
                "PUT", "/v1/policies/shedding/cluster", json={"value": {"on": False}, "reason": "test"}
            )
            assert drained.status_code in (200, 400), drained.text
        console.terminate()
        assert console.wait(WAIT_S) == 0

        # An export whose time is up has the ends that it has read to.
        place = {"kafka": {"bootstrap_servers": cluster.bootstrap}, "channel": {"name": cluster.channel}}
        bounds, path = ExportBounds(1_000_000, 0.0), tmp_path / "part.jsonl"
        written = export_live(connection_of(load(overrides=place)), path, bounds=bounds)
        export = read_export(path)
        assert bounds.stopped_at == {0: 1} == written.end_offsets == export.header.end_offsets
        assert (export.records, export.header.digest) == (1, written.digest)


@pytest.mark.parametrize("generate", [python_client, typescript_client])
def test_a_client_that_is_generated_from_the_description_drives_it(
    cluster: ApiCluster, tmp_path: Path, generate: Callable[[Path, Path], list[str]]
) -> None:
    with cluster.api("b1") as http:
        description = tmp_path / "openapi.json"
        description.write_bytes(http.get("/v1/openapi.json").content)
        command = generate(description, tmp_path)
        assert driven(command, str(http.base_url), tmp_path) == DRIVEN
