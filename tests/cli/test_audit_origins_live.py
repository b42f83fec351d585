"""`audit origins` of a live channel: an operator's request, a decision, a repair, and a console producer that nobody asked."""

import json
from collections.abc import Callable
from importlib.metadata import EntryPoint
from typing import Any

import pytest
from click.testing import Result

from shedders.decisions.builder import Executed
from shedders.decisions.topic import DecisionWriter
from statechannel.cli.audit import origins
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.tail import append_and_wait
from statechannel.kafka.topic_policy import decisions_topic
from statechannel.kafka.topics import create_topics
from statechannel.operations import request_record
from statechannel.operations.request_record import Request
from tests.support.decision_records import LOWER, NAMESPACE, UPPER, ChannelLog, move, record
from tests.support.kafka_lanes import Kafka
from tests.support.waits import WAIT_S

pytestmark = pytest.mark.kafka
LOWER_KEY = f"{NAMESPACE}/{LOWER}"


def test_the_topics_say_who_asked(kafka: Kafka, topic_prefix: str, run: Callable[..., Result], monkeypatch, tmp_path):
    point = EntryPoint("decisions", "shedders.cli.plugins:decisions", origins.GROUP)
    monkeypatch.setattr(origins, "entry_points", lambda group: [point])
    client = ClientSettings(kafka.bootstrap_servers)
    place = ("--bootstrap-servers", kafka.bootstrap_servers, "--channel", topic_prefix)
    assert run("init", *place).exit_code == 0

    topics = decisions_topic(topic_prefix)
    create_topics(client, topics, replication_factor=1)
    writer = DecisionWriter(client, topics)
    assert writer.write(record(1, moves=[move(LOWER_KEY)], executed={LOWER_KEY: Executed("op-move")}))
    assert writer.close(WAIT_S)
    for operation, command, args in (
        ("create-1", "create-namespace", {"namespace": NAMESPACE}),
        ("op-unload", "unload", {"name": f"{NAMESPACE}/{UPPER}"}),
    ):
        value = request_record.encode(Request(operation, command, 0, args, "ann@desk"), timeout_s=60)
        append_and_wait(client, f"{topic_prefix}-requests", 0, key=operation.encode(), value=value)

    log = ChannelLog()
    log.created(LOWER, UPPER)
    for bundle in (LOWER_KEY, f"{NAMESPACE}/{UPPER}"):
        log.assigned(bundle)
    log.moved(LOWER_KEY, "b1", "b2", operation="op-move")
    log.unloaded(f"{NAMESPACE}/{UPPER}", "b1", operation="op-unload")
    log.write(LOWER_KEY, "Assigning", to="b1", forced=True, flow="repair", operation="op-repair")
    log.write(LOWER_KEY, "Assigned", to="b1", flow="repair", operation="op-repair")
    log.write(LOWER_KEY, "Releasing", **{"from": "b1"}, to="b2", reason="so there")
    for entry in log.records:
        append_and_wait(client, topic_prefix, 0, key=entry.key, value=entry.value)

    result = run("audit", "origins", *place, "--output", "json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["counts"] == {"decision": 1, "request": 2, "repair": 1, "lookup": 2, "none": 1}
    expected = [("decisions", 0), ("requests", 0), ("registry", 0)]
    assert [(source["name"], source["since_ms"]) for source in document["sources"]] == expected
    mine = json.loads(run("audit", "origins", *place, "--by", "ann@desk", "--output", "json").stdout)
    assert mine["counts"] == {"request": 2}
    nobody = run("audit", "origins", *place, "--by", "ann")
    assert nobody.exit_code == 5
    assert "Known: ann@desk. " in nobody.stderr
    shown = run("audit", "origins", *place)
    assert shown.exit_code == 0, shown.output
    (line,) = (item for item in shown.stdout.splitlines() if "Releasing" in item)
    assert "so there" in line
    assert " none " in line

    # The export with its topics gives the same answers, without Kafka.
    assert run("policy", "set", "pin", NAMESPACE, "b1", *place, "--by", "ann@desk").exit_code == 0
    assert run("policy", "set", "exclude", NAMESPACE, *place, "--by", "ann@desk").exit_code == 0
    taken = run("policy", "delete", "exclude", NAMESPACE, *place, "--by", "bob@desk", "--reason", "the sale is over")
    assert taken.exit_code == 0, taken.output
    file = tmp_path / "ev.jsonl"
    exported = run("export", str(file), *place, "--with-topics")
    assert exported.exit_code == 0, exported.output
    expected = {"ev.jsonl", *(f"ev.{role}.jsonl" for role in ("registry", "requests", "policies", "decisions"))}
    assert {path.name for path in tmp_path.glob("ev*")} == expected

    def answer(*command: str) -> dict[str, Any]:
        told = run(*command, "--file", str(file), "--output", "json")
        assert told.exit_code == 0, told.output
        return json.loads(told.stdout)

    alone = answer("audit", "origins")
    assert (alone["counts"], alone["sources"]) == (document["counts"], document["sources"])
    assert answer("audit", "origins", "--by", "ann@desk")["counts"] == {"request": 2}
    (shown_one,) = [row for row in answer("operation", "list")["operations"] if row["operation"] == "op-unload"]
    assert shown_one["by"] == "ann@desk"
    assert len(answer("operation", "show", "op-unload")["records"]) == 2
    steps = answer("why", LOWER_KEY)["steps"]
    assert [step["decision"] is not None for step in steps if step["operation"] == "op-move"] == [True]
    assert [row["id"] for row in answer("decisions", "--since", "30d")["decisions"]]
    changes = answer("policy", "history")["changes"]
    expected = [("set", "ann@desk", ""), ("set", "ann@desk", ""), ("deleted", "bob@desk", "the sale is over")]
    assert [(row["what"], row["by"], row["why"]) for row in changes] == expected
    assert "note" not in run("policy", "history", "--file", str(file)).stderr
    assert {gap["requested_by"] for gap in answer("audit", "gaps")["gaps"] if gap["operation"] == "op-unload"} == {
        "ann@desk"
    }
    verified = json.loads(run("audit", "verify-export", str(file), "--output", "json").stdout)
    assert [side["status"] for side in verified["beside"].values()] == ["covered"] * 4
    done = answer("audit", "actions", "--by", "ann@desk")["actions"]
    assert [row["what"] for row in done] == ["create-namespace", "unload", "set pin", "set exclude"]
    live = json.loads(run("audit", "actions", *place, "--by", "ann@desk", "--output", "json").stdout)["actions"]
    assert live == done
    taken_back = answer("audit", "actions", "--by", "bob@desk")["actions"]
    assert [(row["what"], row["reason"]) for row in taken_back] == [("delete exclude", "the sale is over")]
    requests = tmp_path / "ev.requests.jsonl"
    requests.write_text(requests.read_text().replace("ann@desk", "eve@desk"))
    assert run("audit", "verify-export", str(file)).exit_code == 7
    assert run("audit", "origins", "--file", str(file)).exit_code == 7
