"""From a seed to what a run does: its cluster, and which fault comes when. The same seed is the same plan, always."""

import random
from dataclasses import dataclass, field
from typing import Any

from tests.faults import faults_in_debt, faults_of_brokers, faults_of_kafka, faults_of_links, faults_of_topics
from tests.faults.fault import KINDS, Fault
from tests.faults.kafka_nodes import NODE_RACKS

__all__ = ["KINDS", "Plan", "Step", "make_plan"]

FAMILIES = (faults_in_debt, faults_of_brokers, faults_of_kafka, faults_of_links, faults_of_topics)
SETTINGS: dict[str, float | int] = {
    "membership.interval_s": 0.5,
    "membership.expiry_s": 6.0,
    "safe_mode.after_s": 3.0,
    "safe_mode.settle_s": 4.0,
    "leader.heartbeat_interval_s": 0.5,
    "leader.cold_start_after_s": 5.0,
    "kafka.session_timeout_ms": 6_000,
    "kafka.delivery_timeout_ms": 10_000,
    "kafka.request_timeout_ms": 2_000,
    "hooks.deadline_s": 3.0,
    "hooks.shutdown_budget_s": 10.0,
    "repair.in_flight_limit_s": 7.0,
    "repair.scan_interval_s": 5.0,
    "repair.mass_loss_window_s": 4.0,
    "repair.mass_loss_pause_s": 8.0,
    "limits.unknown_limit_s": 15.0,
}
"""Patience short enough for many faults an hour, in the relations that are checked at start."""
LEASE_S = 4.5
COMPACTING: dict[str, float | int] = {
    "channel.min_compaction_lag_ms": 50_000,
    "channel.max_compaction_lag_ms": 60_000,
    "channel.segment_ms": 1_000,
    "channel.min_cleanable_dirty_ratio": 0.01,
    "kafka.delivery_timeout_ms": 5_000,
    "kafka.request_timeout_ms": 1_500,
}
"""The cleaner is at work all the time: whoever starts after the first minute joins a log with gaps."""


IN_DEBT = COMPACTING | {"channel.min_compaction_lag_ms": 90_000, "channel.max_compaction_lag_ms": 100_000}
"""Half of the lag is far above the time that killed brokers take to come back, on a busy machine too."""

BALANCER: dict[str, Any] = {
    f"extensions.balancer.{name}": value
    for name, value in {
        "source": "simulated",
        "interval_s": 2,
        "trigger_gap_s": 1,
        "settle_s": 2,
        "splitting": "false",
        "budget.load_percent": 100,
        "load.measure_interval_s": 0.5,
        "load.sample_interval_s": 0.5,
        "load.settle_s": 0.5,
        "load.top_interval_s": 0.5,
        "load.history": 0.5,
        "load.report_threshold_percent": 2,
        "shedding": "transfer",
        "strategies.shedding.transfer.hit_threshold": 0,
        "strategies.shedding.transfer.cool_down_s": 0,
        "strategies.shedding.transfer.grace_s": 1,
        "strategies.shedding.transfer.target_std": 0.001,
    }.items()
}
"""Made-up load that never fits: the leader has something to move in most cycles."""


@dataclass(slots=True)
class Step:
    """One or two faults that are on at the same time.

    Attributes:
        apart_s: Time between the beginnings of two.
        calm: Afterwards the cluster is left alone until it has recovered, which is measured; else the next one comes soon.
        pause_s: Time before the next one where it is not calm.
    """

    faults: list[Fault]
    apart_s: float = 0.0
    calm: bool = True
    pause_s: float = 0.0

    def __str__(self) -> str:
        return " + ".join(str(fault) for fault in self.faults) + (
            "" if self.calm else f" (next after {self.pause_s:g}s)"
        )


@dataclass(slots=True)
class Plan:
    """A whole run.

    Attributes:
        compacting: The log is cleaned behind a lag of less than a minute.
        in_debt: All brokers die with debts unpaid: on a log that has gaps from the beginning.
        partitions: Of the channel's topic.
        balancing: The balancer moves bundles by made-up load, all the time.
        racks: By broker, where it is; it reads from the Kafka node there, leader or not. Empty: all read from leaders.
    """

    seed: int
    nodes: int
    brokers: list[str]
    lease_s: float | None
    bundles: list[int]
    steps: list[Step] = field(default_factory=list)
    compacting: bool = False
    in_debt: bool = False
    partitions: int = 1
    balancing: bool = False
    racks: dict[str, str] = field(default_factory=dict)

    def settings(self) -> dict[str, Any]:
        """Of brokers and of commands."""
        more = {} if self.lease_s is None else {"safe_mode.lease_s": self.lease_s}
        cleaner = IN_DEBT if self.in_debt else COMPACTING if self.compacting else {}
        balancer = BALANCER if self.balancing else {}
        return SETTINGS | more | cleaner | balancer | {"channel.partitions": self.partitions}

    def facts(self) -> dict[str, Any]:
        """For the report."""
        return {
            "seed": self.seed,
            "nodes": self.nodes,
            "brokers": self.brokers,
            "lease_s": self.lease_s,
            "compacting": self.compacting,
            "in_debt": self.in_debt,
            "partitions": self.partitions,
            "balancing": self.balancing,
            "racks": self.racks,
            "bundles": self.bundles,
            "steps": [str(step) for step in self.steps],
        }


def make_plan(
    seed: int, *, steps: int = 6, only: tuple[str, ...] = (), nodes: int | None = None, lease: bool | None = None
) -> Plan:
    """The plan of a seed.

    Args:
        steps: Number of rounds.
        only: Kinds that may be drawn; none: all that fit.
        nodes: Of Kafka; None: one, and every fourth time three.
        lease: Whether the lease option is on; None: every second time.
    """
    rng = random.Random(f"faults/{seed}")
    drawn_nodes, drawn_lease = rng.choice([1, 1, 1, 3]), rng.random() < 0.5
    nodes = drawn_nodes if nodes is None else nodes
    if only and any(KINDS[kind].nodes == 3 for kind in only):
        nodes = 3
    brokers = [f"b{number + 1}" for number in range(rng.choice([3, 3, 4]))]
    plan = Plan(
        seed,
        nodes,
        brokers,
        LEASE_S if (drawn_lease if lease is None else lease) else None,
        [rng.choice([2, 4, 7]) for _ in range(rng.choice([2, 3]))],
    )
    plan.compacting = random.Random(f"faults/{seed}/compacting").random() < 0.5
    plan.partitions = random.Random(f"faults/{seed}/partitions").choice([1, 1, 2, 5])
    plan.balancing = random.Random(f"faults/{seed}/balancing").random() < 0.3
    if nodes == len(NODE_RACKS) and random.Random(f"faults/{seed}/racks").random() < 0.5:
        plan.racks = dict(zip(brokers, [*NODE_RACKS, *NODE_RACKS], strict=False))
    named = [kind for name, kind in sorted(KINDS.items()) if (name in only if only else not kind.by_name_only)]
    kinds = [kind for kind in named if _fits(kind, nodes)]
    weights = [kind.weight for kind in kinds]
    for _ in range(steps):
        count = 2 if rng.random() < 0.35 else 1
        faults = [kind.pick(rng, brokers) for kind in rng.choices(kinds, weights, k=count)]
        calm = rng.random() < 0.75
        if any(fault.by_name_only for fault in faults):
            plan.in_debt = plan.compacting = True
            plan.partitions, plan.balancing = 1, False
        if alone := next((fault for fault in faults if fault.alone), None):
            faults, calm = [alone], True
            if plan.steps:
                plan.steps[-1].calm = True
        plan.steps.append(Step(faults, round(rng.uniform(0, 4), 2), calm, round(rng.uniform(0, 3), 2)))
    plan.steps[-1].calm = True
    return plan


def _fits(kind: type[Fault], nodes: int) -> bool:
    return kind.nodes in (0, nodes)
