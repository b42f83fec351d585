"""Random plans of partitions on three Kafka nodes, with another tool at work: throttles removed, topics deleted, partitions
added, the executor killed or ended by a signal.

    python -m tests.faults.partition_plans SEED PLANS

Each plan has to end as planned, or with what was dropped by name; no throttle may be left then, and none may be lifted while
copies are in flight. Prints a line for each plan, and ends with 1 at the first that fails.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from confluent_kafka import Producer
from kafka.admin import ConfigResource, NewPartitions

from loaddata.samples.admin import open_admin
from shedders.kafka_rebalance.execution.throttle import RATES
from shedders.kafka_rebalance.planning.plan import ReassignmentPlan
from statechannel.kafka.client_settings import ClientSettings
from tests.faults.kafka_nodes import KafkaNodes
from tests.kafka.test_partitions_execution import QUICK, Lab
from tests.support.waits import WAIT_S

PARTITIONS = 3
SIZE_BYTES = 2_500_000
"""A throttle holds nothing of what fits into one fetch, 1 MiB."""
PAIRS = ((1, 2), (2, 1), (1, 3), (3, 1), (2, 3), (3, 2))
ACTS = ("rates", "delete", "grow", "kill", "term")
LIVES_MAX = 4


def prepare(lab: Lab, rng: Random, number: int) -> tuple[Path, ReassignmentPlan]:
    """Two topics with data, and a plan that moves each partition somewhere else."""
    names = [f"p{number}-{suffix}" for suffix in ("kept", "gone")]
    producer = Producer({"bootstrap.servers": lab.nodes.address, "acks": "all"})
    for name in names:
        lab.admin.create_topics({name: {"assignments": {n: list(rng.choice(PAIRS)) for n in range(PARTITIONS)}}})
    for place in range(SIZE_BYTES // 50_000 * PARTITIONS * len(names)):
        name = names[place % len(names)]
        producer.produce(name, value=rng.randbytes(50_000), partition=place // len(names) % PARTITIONS)
        assert place % 100 or producer.flush(WAIT_S) == 0
    assert producer.flush(WAIT_S) == 0
    lab.until(lambda: set(names) <= set(lab.layout().topics))
    return lab.plan(lambda _, now: rng.choice([pair for pair in PAIRS if set(pair) != set(now)]), *names)


def unthrottled(lab: Lab, plan: ReassignmentPlan) -> set[int]:
    """Brokers of copies in flight that have no rate."""
    before = lab.layout()
    rates = lab.throttles(plan)
    after = lab.layout()
    brokers = set[int]()
    for move in plan.moves:
        topics = (before.topics.get(move.topic), after.topics.get(move.topic))
        parts = [topic.partitions[move.partition] for topic in topics if topic is not None]
        if len(parts) == len(topics) and all(part.in_motion for part in parts):
            brokers |= set(parts[0].replicas)
    return {broker for broker in brokers if not set(RATES) <= set(rates.get(("broker", str(broker)), {}))}


def interfere(lab: Lab, plan: ReassignmentPlan, act: str, tool: Any) -> None:
    kept, gone = sorted({move.topic for move in plan.moves}, reverse=True)
    if act == "rates":
        for broker in (1, 2, 3):
            removed = ConfigResource("BROKER", str(broker), dict.fromkeys(RATES, (1, None)))
            lab.admin.alter_configs([removed], raise_on_unknown=False, incremental=True)  # there may be none
    elif act == "delete":
        lab.admin.delete_topics([gone])
    elif act == "grow":
        lab.admin.create_partitions({kept: NewPartitions(total_count=PARTITIONS + 1)})
    else:
        tool.send_signal(signal.SIGKILL if act == "kill" else signal.SIGTERM)


def has_begun(lab: Lab, plan: ReassignmentPlan, tool: Any) -> bool:
    return tool.poll() is not None or "batch" in lab.events(plan)


def carry_out(lab: Lab, rng: Random, number: int) -> str:
    """One plan to its end; the acts and the end as a line."""
    path, plan = prepare(lab, rng, number)
    acts = rng.sample(ACTS, rng.randint(1, 3))
    done = list(acts)
    tool = lab.begin("apply", str(path), "--execute", "--throttle", "400000", "--moves-per-broker", "2")
    for _ in range(LIVES_MAX):
        while tool.poll() is None and acts:
            lab.until(partial(has_begun, lab, plan, tool))
            time.sleep(rng.uniform(0.2, 2.5))
            act = acts.pop(0)
            interfere(lab, plan, act, tool)
            if act in {"kill", "term"}:
                tool.communicate(timeout=WAIT_S)
                assert "rates" in done[: done.index(act)] or not unthrottled(lab, plan), f"{act}: lifted early"
        out, err = tool.communicate(timeout=WAIT_S)
        if tool.returncode == 0:
            break
        assert "Traceback" not in err, err
        tool = lab.begin("resume", plan.id)
    ended = json.loads(out)
    assert ended["ended"] == "done", ended
    layout = lab.layout()
    for move in plan.moves:
        topic = layout.topics.get(move.topic)
        there = None if topic is None else topic.partitions[move.partition].replicas
        moved = topic is not None and there == move.after
        assert moved or (move.topic.endswith("gone") and "delete" in done), (move, there)
    if "delete" in done and "dropped" not in (ended["reason"] or ""):
        assert lab.run("status", plan.id)["progress"]["done"] == len(plan.moves), "dropped without a word"
    assert lab.throttles(plan) == {}
    lab.admin.delete_topics([name for name in {move.topic for move in plan.moves} if name in layout.topics])
    return f"plan {number}: {', '.join(done)}: done; {ended['reason']}"


def main(seed: int, plans: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        nodes = KafkaNodes(Path(folder), 3, properties=QUICK)
        try:
            asyncio.run(nodes.start())
            settings = ClientSettings(nodes.address)
            with open_admin(settings, timeout_s=WAIT_S) as admin:
                lab = Lab(nodes, Path(folder), settings, admin)
                lab.until(lambda: len(lab.layout().brokers) == 3)
                for number in range(plans):
                    print(carry_out(lab, Random(f"{seed} {number}"), number), flush=True)
        finally:
            asyncio.run(nodes.close())


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
