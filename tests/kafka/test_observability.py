"""What an operator sees of two brokers on a real Kafka: pages, metrics, events, and one trace of both."""

import asyncio
import contextlib
import json
import urllib.error
import urllib.request
from hashlib import sha256

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families

from statechannel.api import Done, Owned, StateChannel
from statechannel.broker import assembly
from statechannel.broker.observe.events import EVENTS
from statechannel.broker.observe.metric_table import TABLE, MetricKind
from statechannel.broker.observe.traces import Traces, root_span_id_of, trace_id_of
from tests.support.channels import Recorder, created, make_settings
from tests.support.kafka_lanes import Kafka
from tests.support.log_lines import capture_logs
from tests.support.waits import WAIT_S

NAMESPACE = "public/default"
TOPIC = "public/default/orders"


class Pair:
    """Two members, the spans of each, and the lines of both."""

    def __init__(self) -> None:
        self.channels: dict[str, StateChannel] = {}
        self.exporters: dict[str, InMemorySpanExporter] = {}
        self.lines: list[dict] = []

    def port(self, broker: str) -> int:
        return self.channels[broker].status()["runtime"]["metrics_port"]

    async def get(self, broker: str, path: str) -> tuple[int, str]:
        return await asyncio.to_thread(fetch, f"http://127.0.0.1:{self.port(broker)}{path}")

    async def ready(self, broker: str) -> dict:
        return json.loads((await self.get(broker, "/readyz"))[1])

    def events(self, name: str, **facts) -> list[dict]:
        return [
            line
            for line in self.lines
            if line["event"] == name and all(line.get(fact) == value for fact, value in facts.items())
        ]


def fetch(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.fixture
async def pair(kafka: Kafka, topic_prefix: str, monkeypatch: pytest.MonkeyPatch):
    pair = Pair()

    def traces(_, identity) -> Traces:
        exporter = pair.exporters[identity.broker] = InMemorySpanExporter()
        return Traces(topic_prefix, identity.broker, identity.incarnation, SimpleSpanProcessor(exporter))

    monkeypatch.setattr(assembly, "_traces", traces)
    observe = {"metrics_port": 0, "traces": True, "log_level": "debug"}
    settings = make_settings(kafka.bootstrap_servers, topic_prefix, observe=observe)
    with capture_logs() as pair.lines:
        async with contextlib.AsyncExitStack() as stack:
            for name in ("b1", "b2"):
                opening = StateChannel.open(
                    settings, broker=name, hooks=Recorder(), create_topics=name == "b1", join_timeout_s=WAIT_S
                )
                pair.channels[name] = await stack.enter_async_context(opening)
            yield pair


async def transferred(pair: Pair) -> tuple[str, Owned, str]:
    """A bundle that was assigned and then given to the other broker; the transfer's operation, first owner, last owner."""
    first = pair.channels["b1"]
    await created(first, NAMESPACE, 4)
    owned = await first.lookup(TOPIC, WAIT_S)
    assert isinstance(owned, Owned), owned
    to = "b2" if owned.broker == "b1" else "b1"
    for _ in range(100):
        ticket = await first.transfer(TOPIC, to, reason="for the test")
        outcome = await ticket.outcome(WAIT_S)
        if isinstance(outcome, Done):
            return str(ticket), owned, to
        await asyncio.sleep(0.1)  # b1 may not have read yet that it is owned, or who lives
    raise AssertionError(outcome)


async def test_a_transfer_as_an_operator_sees_it(pair: Pair) -> None:
    operation, before, to = await transferred(pair)
    await one_trace_of_both_brokers(pair, operation, before, to)
    await events_tell_operation_bundle_generation_and_offset(pair, operation, before)
    await pages_of_a_broker(pair, before, to)


async def one_trace_of_both_brokers(pair: Pair, operation: str, before: Owned, to: str) -> None:
    trace = trace_id_of(operation)

    def spans(broker: str) -> list:
        return [span for span in pair.exporters[broker].get_finished_spans() if span.context.trace_id == trace]

    def unfinished() -> bool:
        """Hooks run beside what they are about: the last of them may come after the answer."""
        source, destination = ({span.name for span in spans(broker)} for broker in (before.broker, to))
        return "hook on_moved" not in source or "hook on_serve" not in destination

    async with asyncio.timeout(WAIT_S):
        while unfinished():  # noqa: ASYNC110 - exporters tell nobody
            await asyncio.sleep(0.05)
    of_source, of_destination = spans(before.broker), spans(to)
    assert {span.name for span in of_source} >= {"transfer: Releasing", "transfer: release", "hook on_release"}
    assert {span.name for span in of_destination} >= {"transfer", "transfer: acquire", "hook on_own", "hook on_serve"}
    assert "command Transfer" in {span.name for span in spans("b1")}
    (root,) = [span for span in (*of_source, *of_destination) if span.name == "transfer"]
    assert root.context.span_id == root_span_id_of(operation)
    children = [span for span in (*of_source, *of_destination) if span is not root]
    assert {span.parent.span_id for span in children} == {root.context.span_id}
    assert len({span.context.span_id for span in children}) == len(children)
    (acquire,) = [span for span in of_destination if span.name == "transfer: acquire"]
    assert root.start_time <= acquire.start_time <= acquire.end_time == root.end_time
    assert acquire.attributes["statechannel.to"] == to
    assert acquire.attributes["statechannel.from"] == before.broker


async def events_tell_operation_bundle_generation_and_offset(pair: Pair, operation: str, before: Owned) -> None:
    for teller in ("b1", "b2"):
        async with asyncio.timeout(WAIT_S):
            # The other broker reads the last record on its own, perhaps after the answer was given here; and the loop may
            # give others a turn between two events of a step.
            while not (  # noqa: ASYNC110
                pair.events("operation.ended", operation=operation, broker=teller)
                and pair.events("record.accepted", operation=operation, broker=teller, state="Assigned")
            ):
                await asyncio.sleep(0.05)
        result = pair.events("record.accepted", operation=operation, broker=teller)
        assert [line["state"] for line in result] == ["Releasing", "Assigning", "Assigned"]
        assert {line["bundle"] for line in result} == {before.bundle}
        assert [line["offset"] for line in result] == sorted({line["offset"] for line in result})
        assert result[-1]["generation"] > result[0]["generation"] == before.generation
        assert result[0]["reason"] == "for the test"
        assert {line["log_level"] for line in result} == {"info"}  # both are concerned
        (ended,) = pair.events("operation.ended", operation=operation, broker=teller)
        assert (ended["result"], ended["offset"]) == ("transferred", result[-1]["offset"])
    assert pair.events("member.joined", member="b2", broker="b1")
    assert {line["duty"] for line in pair.events("duty.began")} >= {"heartbeats"}
    assert pair.events("record.unchanging", verdict="control")
    unknown = {line["event"] for line in pair.lines if line.get("broker") in ("b1", "b2")} - set(EVENTS)
    assert unknown == set()
    for line in pair.lines:
        extra = set(line) - {"event", "log_level", "broker", "exc_info"}
        if line["event"] in EVENTS:
            assert extra <= set(EVENTS[line["event"]].fields), line


async def pages_of_a_broker(pair: Pair, before: Owned, to: str) -> None:
    await asyncio.sleep(1.5)  # gauges follow within a second
    for broker in ("b1", "b2"):
        status, text = await pair.get(broker, "/healthz")
        assert (status, json.loads(text)["status"]) == (200, "ok")
        status, text = await pair.get(broker, "/readyz")
        assert (status, json.loads(text)["reasons"]) == (200, [])
    status, text = await pair.get(to, "/metrics")
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert {f"statechannel_{metric.name}" for metric in TABLE} <= set(families)
    assert all(families[f"statechannel_{metric.name}"].type == metric.kind for metric in TABLE)
    assert "process_resident_memory_bytes" in families
    assert before.bundle not in text
    gaps = {
        sample.labels["cause"]: sample.value
        for sample in families["statechannel_gap_seconds"].samples
        if "_count" in sample.name
    }
    assert gaps == {"transfer": 1.0}
    used = {
        metric.name
        for metric in TABLE
        if metric.kind is MetricKind.HISTOGRAM and families[f"statechannel_{metric.name}"].samples
    }
    assert used >= {"handoff_seconds", "gap_seconds", "hook_seconds", "append_seconds", "loop_burst_seconds"}

    infos = {broker.broker: broker.info for broker in pair.channels["b1"]._host.engine.presence.members.alive.values()}
    assert infos[to]["http"] == f"http://127.0.0.1:{pair.port(to)}"
    status, text = await pair.get(to, "/digest")
    document = json.loads(text)
    assert (status, document["broker"]) == (200, to)
    status, text = await pair.get(to, "/dump")
    head, _, lines = text.partition("\n")
    assert sha256(lines.encode()).hexdigest() == json.loads(head)["digest"] == document["digest"]
    assert before.bundle in lines


async def test_who_leaves_is_not_ready_any_more_and_takes_its_port_along(pair: Pair) -> None:
    port = pair.port("b2")
    leaving = asyncio.ensure_future(pair.channels["b2"].shutdown(5.0))
    seen: set[int] = set()
    while not leaving.done():
        with contextlib.suppress(OSError):
            seen.add((await asyncio.to_thread(fetch, f"http://127.0.0.1:{port}/readyz"))[0])
    await leaving
    assert 503 in seen
    with pytest.raises(urllib.error.URLError):
        await asyncio.to_thread(fetch, f"http://127.0.0.1:{port}/healthz")
    assert pair.events("member.left", member="b2", broker="b1")
    assert pair.events("stopped", reason="closed")
