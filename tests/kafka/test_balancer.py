"""A cluster that balances itself: three broker processes with load that is made up, on a real Kafka."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from ulid import ULID

from shedders.balancer.extension import BalancerExtension
from shedders.balancer.movers import EndedOperation
from shedders.balancer.settings import configured
from shedders.balancer.splitting import SplitRequester
from shedders.decisions.record import DecisionRecord, OutcomeRecord
from shedders.decisions.topic import DecisionReader, DecisionWriter, newest_decision
from shedders.model.cluster import Cluster
from shedders.model.plan import SplitWanted
from statechannel.api import Owned, StateChannel
from statechannel.errors import StateChannelError
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.light_topic import LightTuning
from statechannel.kafka.topic_policy import decisions_topic
from statechannel.kafka.topics import create_topics
from statechannel.settings import load
from tests.support.broker_cluster import BrokerCluster, broker_cluster
from tests.support.decision_records import record
from tests.support.kafka_lanes import Kafka
from tests.support.waits import WAIT_S

pytestmark = pytest.mark.timeout(900)

NAMESPACE = "tenant/ns"
BALANCER = {
    "source": "simulated",
    "interval_s": "2",
    "trigger_gap_s": "0.5",
    "settle_s": "4",
    "splitting": "false",
    "budget.load_percent": "100",
    "load.measure_interval_s": "0.5",
    "load.sample_interval_s": "0.5",
    "load.tick_s": "0.1",
    "load.settle_s": "0.5",
    "load.top_interval_s": "0.5",
    "load.history": "0.5",
    "load.report_threshold_percent": "2",
    "strategies.shedding.weighted-move.payback_min": "0.05",
    "strategies.shedding.weighted-move.grace_s": "5",
    "strategies.shedding.transfer.hit_threshold": "1",
    "strategies.shedding.transfer.cool_down_s": "2",
    "strategies.shedding.transfer.grace_s": "5",
    "strategies.shedding.transfer.target_std": "0.12",
}
CALM = 4
"""So many decisions in a row without a move, and it has settled."""
SLOW_RELEASE_S = 8.0
MOVES_MIN = 3
"""Of one decision, at least; so many slow hooks follow each other."""


@pytest.fixture
def cluster(kafka: Kafka, topic_prefix: str, tmp_path: Path) -> Iterator[BrokerCluster]:
    flags = [f"extensions.balancer.{name}={value}" for name, value in BALANCER.items()]
    with broker_cluster(BrokerCluster(kafka, topic_prefix, tmp_path, flags)) as found:
        yield found


def spread(decision: dict[str, Any]) -> float:
    scores = decision["scores"].values()
    return max(scores) - min(scores)


def moves(decision: dict[str, Any]) -> list[dict[str, Any]]:
    """Those that set out."""
    return [one for one in decision["moves"] if one["operation"] is not None]


def made(cluster: BrokerCluster) -> list[dict[str, Any]]:
    """Decisions that were not skipped."""
    return [one for one in cluster.decisions() if one["skipped"] is None]


def all_ended(decisions: list[dict[str, Any]]) -> bool:
    return all(move["result"] != "started" for decision in decisions for move in moves(decision))


def stop_shedding(cluster: BrokerCluster) -> None:
    """A balancer that has settled may move a bundle later; nothing may move while answers are compared."""
    cluster("policy", "set", "shedding", "off", "--reason", "compare")
    cluster.wait(lambda: cluster.decisions()[-1]["skipped"] == "shedding-off")


def test_generated_load_settles_and_why_answers_for_each_move(cluster: BrokerCluster) -> None:
    cluster.start("b1", "b2", "b3")
    bundles = cluster.create(NAMESPACE, 12, "b1")

    def settled() -> bool:
        found = made(cluster)
        first = next((one for one in found if moves(one)), None)
        if first is None or any(map(moves, found[-CALM:])):
            return False
        return 2 * spread(found[-1]) < spread(first)

    cluster.wait(settled, 400)
    stop_shedding(cluster)
    cluster.wait(lambda: all_ended(made(cluster)))
    found = made(cluster)
    inputs = found[-1]["inputs"]
    assert min(inputs["broker_load"], inputs["top_bundles"], inputs["policies"], *inputs["channel"].values()) > 0
    owners = cluster.owners()
    assert set(owners) == set(bundles)
    assert set(owners.values()) == {"b1", "b2", "b3"}

    told = {(one["id"], move["bundle"]): move for one in found for move in moves(one)}
    ends = {key: move["result"] for key, move in told.items()}
    # What still waited for its turn when shedding was switched off does not move any more.
    assert set(ends.values()) <= {"done", "abandoned"}, ends
    assert "done" in ends.values()
    for name in {bundle for _, bundle in told}:
        answer = cluster("why", name)
        assert answer["owner"] == owners[name]
        said = {step["decision"] for step in answer["steps"] if step["decision"] is not None}
        assert {decision for decision, bundle in told if bundle == name} <= said
    left = next(name for name in bundles if owners[name] == "b1")
    assert cluster("why-not", left)["verdicts"]


def test_a_leader_that_is_killed_in_the_middle_of_its_moves_leaves_nothing_behind(cluster: BrokerCluster) -> None:
    """Each move waits for a slow hook, and for the one before it: the kill falls between the first end and the last."""
    cluster.start("b1", extra=["extensions.balancer.moves_at_once=1"])
    cluster.wait(lambda: cluster.leader() == "b1")
    # However slow the machine is, it hears of the first move's end long before all the others have waited for their hooks.
    cluster.start("b2", "b3", options=["--release-ms", f"{SLOW_RELEASE_S * 1_000:.0f}"])
    bundles = cluster.create(NAMESPACE, 48, "b2")
    topics = decisions_topic(cluster.channel)
    last: DecisionRecord | None = None
    over: set[str] = set()
    with DecisionReader(ClientSettings(cluster.bootstrap), topics) as reader:
        ends_s = time.monotonic() + WAIT_S
        for batch in reader.follow(since_ms=0, stop=lambda: time.monotonic() > ends_s):
            for one in batch:
                if isinstance(one.record, DecisionRecord) and one.record.subject == "shed" and one.record.moves:
                    last = last or one.record
                elif isinstance(one.record, OutcomeRecord) and last is not None and one.record.decision == last.id:
                    over.add(one.record.bundle)
            if over:
                break
        else:
            raise AssertionError(cluster.logs())
    cluster.kill("b1")
    begun = {one.bundle for one in last.moves if one.operation is not None}
    assert len(begun) > MOVES_MIN

    def settled() -> bool:
        owners = cluster.owners()
        later = [one for one in made(cluster) if one["leader"] != "b1"]
        return set(owners) == set(bundles) and set(owners.values()) <= {"b2", "b3"} and bool(later)

    cluster.wait(settled)
    stop_shedding(cluster)
    cluster.wait(lambda: all_ended([decision for decision in made(cluster) if decision["leader"] != "b1"]))
    told = next(one for one in cluster.decisions() if one["id"] == last.id)
    ends = {one["bundle"]: one["result"] for one in told["moves"] if one["operation"] is not None}
    unfinished = {name for name, result in ends.items() if result == "started"}
    assert unfinished, ends  # nobody is left to say how those ended
    assert over <= begun - unfinished
    for name in [*sorted(unfinished)[:2], *sorted(over)[:2]]:
        answer = cluster("why", name)
        assert answer["owner"] == cluster.owners()[name]
        assert last.id in {step["decision"] for step in answer["steps"]}
    first = next(one for one in made(cluster) if one["leader"] != "b1")
    assert (first["trigger"], first["cycle"]) == ("new-leader", 1)


def test_decisions_go_on_when_their_topic_is_deleted(kafka: Kafka, topic_prefix: str) -> None:
    """They are lost and counted; where the topic is made anew the next ones are in it."""
    client, topics = ClientSettings(kafka.bootstrap_servers), decisions_topic(topic_prefix)
    create_topics(client, topics, replication_factor=1)
    writer = DecisionWriter(client, topics, tuning=LightTuning(delivery_timeout_ms=20_000))
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    try:
        assert writer.write(record(1))
        assert writer.flush(WAIT_S)
        admin.delete_topics([topics.name])[topics.name].result(WAIT_S)
        begun_s = time.monotonic()
        for number in range(2, 12):
            writer.write(record(number))
        assert time.monotonic() - begun_s < 20, "one write that waited for its report would have taken that"
        assert writer.flush(WAIT_S)
        assert (writer.counts.written, writer.counts.failed) == (1, 10)
        with pytest.raises(StateChannelError):
            newest_decision(client, topics, 5)  # a new leader begins without memory
        create_topics(client, topics, replication_factor=1)
        ends_s = time.monotonic() + WAIT_S
        while writer.counts.written == 1:
            assert time.monotonic() < ends_s, writer.counts
            writer.write(record(20))
            writer.flush(10)
        found = newest_decision(client, topics, 30)
        assert found.id == record(20).id
    finally:
        writer.close(5)


def test_policies_are_obeyed_within_moments(cluster: BrokerCluster) -> None:
    cluster.start("b1", "b2", "b3", extra=["extensions.balancer.interval_s=3600"])
    cluster("policy", "set", "shedding", "off", "--reason", "sale")
    bundles = cluster.create(NAMESPACE, 12, "b1")
    cluster("policy", "set", "exclude", "another/one")  # any change of policies asks for a decision
    cluster.wait(lambda: any(one["skipped"] == "shedding-off" for one in cluster.decisions()))
    assert all("sale" in one["why"] for one in cluster.decisions() if one["skipped"] == "shedding-off")
    assert set(cluster.owners().values()) == {"b1"}

    cluster("policy", "set", "pin", bundles[0], "b1")
    cluster("policy", "set", "setting", "balancer.interval_s", "1")
    cluster("policy", "set", "shedding", "on")
    cluster.wait(lambda: len(set(cluster.owners().values())) == 3)
    assert cluster.owners()[bundles[0]] == "b1"

    cluster("policy", "set", "pin", bundles[0], "b3")
    cluster("unload", bundles[0], "--timeout", str(WAIT_S))
    assert cluster("lookup", bundles[0], "--timeout", str(WAIT_S))["broker"] == "b3"
    cluster("policy", "set", "shedding", "off", "--reason", "enough")
    cluster.wait(lambda: cluster.decisions()[-1]["skipped"] == "shedding-off")
    count = len([move for one in made(cluster) for move in moves(one)])
    seen = len(cluster.decisions())
    cluster.wait(lambda: len(cluster.decisions()) >= seen + 3)
    assert len([move for one in made(cluster) for move in moves(one)]) == count


async def test_the_manager_is_switched_under_load_and_every_lookup_is_answered(cluster: BrokerCluster) -> None:
    # A leader whose strategy wants no splits: those of this test are the only ones.
    await asyncio.to_thread(cluster.start, "b1", "b2", "b3", extra=["extensions.balancer.shedding=transfer"])
    await asyncio.to_thread(cluster.create, NAMESPACE, 8, "b2")
    member = _extension()
    async with _member(cluster, member) as channel:
        bundles = list(channel.owners(NAMESPACE))
        stop = asyncio.Event()
        load = asyncio.create_task(_unload_and_look_up(channel, bundles, stop))
        try:
            for manager in ("modular", "extensible"):
                await asyncio.to_thread(cluster.outside, "policy", "set", "manager", manager)
                asked = _asked(channel)
                async with asyncio.timeout(240):
                    while _manager(channel) != manager or (manager == "modular" and _asked(channel) <= asked):  # noqa: ASYNC110
                        await asyncio.sleep(0.1)
            await asyncio.to_thread(cluster.outside, "policy", "delete", "manager")
        finally:
            stop.set()
        answers = await load
        assert answers
        assert all(isinstance(one, Owned) for one in answers), [one for one in answers if not isinstance(one, Owned)]
        for bundle in bundles:
            assert isinstance(await channel.lookup(bundle, WAIT_S), Owned)
        status = channel.status()["extensions"]["balancer"]
        assert status["placements"]["asked"] > 0
        assert status["failing"] == {}
        found = [
            one
            for family in channel.metrics_registry.collect()
            for one in family.samples
            if one.name == "statechannel_assign_seconds_count" and one.value
        ]
        assert {one.labels["reason"] for one in found} >= {"modular", "weighted-move"}
        # A move by the leader between the request's version and its record would be answered with `stale-version`.
        await asyncio.to_thread(cluster.outside, "policy", "set", "shedding", "off", "--reason", "splits only")
        await asyncio.to_thread(cluster.wait, lambda: cluster.decisions()[-1]["skipped"] == "shedding-off")
        await asyncio.to_thread(cluster.wait, lambda: None not in cluster.owners().values())
        parent = await _splits_that_a_balancer_wants(cluster, channel, member)
    async with asyncio.timeout(WAIT_S):
        while None in (owners := await asyncio.to_thread(cluster.owners)).values():  # noqa: ASYNC110  # one may be moving
            await asyncio.sleep(0.2)
    assert set(owners) > set(bundles) - {parent}
    assert parent not in owners
    assert len(owners) == len(bundles) + 1


async def _splits_that_a_balancer_wants(
    cluster: BrokerCluster, channel: StateChannel, member: BalancerExtension
) -> str:
    """The owner, another process, refuses as long as its setting says so, and says so; then it splits. Returns the bundle."""
    parent, owner = next((name, owner) for name, owner in channel.owners(NAMESPACE).items() if owner != "b4")
    wishes = SplitRequester(member._balancer._ports)  # type: ignore[union-attr]
    nothing = Cluster({}, {})

    async def ask() -> EndedOperation:
        told: asyncio.Future[EndedOperation] = asyncio.get_running_loop().create_future()
        begun = wishes.begin([SplitWanted(parent, "too big")], nothing, str(ULID()), told.set_result)
        assert begun.refused == {}
        return await asyncio.wait_for(told, WAIT_S)

    try:
        refused = await ask()
        assert refused.result == "splitting-off"
        assert channel.owners(NAMESPACE)[parent] == owner
        await asyncio.to_thread(cluster.outside, "policy", "set", "setting", "balancer.splitting", "true")
        async with asyncio.timeout(120):
            ended = refused
            while ended.result == "splitting-off":  # until the owner has read of it
                ended = await ask()
    finally:
        await wishes.close()
    assert ended.result == "done", ended
    answer = await asyncio.to_thread(cluster.outside, "why", parent)
    assert [step["operation"] for step in answer["steps"] if step["what"] == "split"] == [ended.operation]
    return parent


def _extension() -> BalancerExtension:
    """Of a fourth broker, in this process."""
    values: dict[str, Any] = {}
    for name, value in {**BALANCER, "balancing": "false", "splitting": "true", "split_again_s": "0"}.items():
        *path, field = name.split(".")
        target = values
        for part in path:
            target = target.setdefault(part, {})
        target[field] = value
    return BalancerExtension(configured(values), simulated=True)


def _member(cluster: BrokerCluster, extension: BalancerExtension) -> Any:
    """A fourth broker, in this process, that does not lead and is asked for bundles."""
    return StateChannel.open(
        load(flags=[*cluster.flags, f"kafka.bootstrap_servers={cluster.bootstrap}", f"channel.name={cluster.channel}"]),
        broker="b4",
        join_timeout_s=120,
        extensions=[extension],
    )


async def _unload_and_look_up(channel: StateChannel, bundles: list[str], stop: asyncio.Event) -> list[Any]:
    answers = []
    for bundle in cycle(bundles):
        if stop.is_set():
            break
        await (await channel.unload(bundle)).outcome(WAIT_S)
        answers.append(await channel.lookup(bundle, WAIT_S))
        with suppress(TimeoutError):
            async with asyncio.timeout(0.1):
                await stop.wait()
    return answers


def _asked(channel: StateChannel) -> int:
    return int(channel.status()["extensions"]["balancer"]["placements"].get("asked", 0))


def _manager(channel: StateChannel) -> str:
    return str(channel.status()["extensions"]["balancer"]["manager"])
