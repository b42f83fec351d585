"""Digests of what the product does, without texts for people."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import orjson

from shedders.contest.contenders import contender
from shedders.contest.outcome import ContestRun
from shedders.contest.runner import play_here
from shedders.contest.sources import scenario_source
from shedders.kafka_rebalance.errors import RequestRefusedError
from shedders.kafka_rebalance.planning.planner import plan_partitions
from statechannel.protocol.log import Topic
from statechannel.protocol.view import View
from statechannel.sim.log import SimLog
from statechannel.sim.runs import LEVELS, SimCase, run
from tests.scenarios.runner import FOLDER, parse
from tests.scenarios.script import Script
from tests.support.partition_cases import requests
from tests.support.partition_clusters import random_cluster

__all__ = ["CLUSTERS", "LEVELS", "contest", "contest_runs", "partitions", "scenario", "scenario_files", "seeds", "take"]

CLUSTERS = 110
"""Random clusters; they give 300 plans and some more."""
CONTEST = ("calm", "hot-topic", "swap-trap", "scale-out", "broker-loss", "slow-broker")
CONTENDERS = (
    "ours",
    "extensible/transfer+least-resource-usage@upstream",
    "modular/threshold+least-resource-usage-modular@upstream",
    "modular/uniform+least-long-term-rate@upstream",
    "extensible/deviation+least-resource-usage@recommended",
)
CONTEST_SEEDS = (1, 2)
STABLE_COUNTS = ("verdict ", "event ", "hook ", "stopped: ", "proposal ")
"""Beginnings of counters that are made of stable words."""
FOR_PEOPLE = ("reason",)
"""Fields of records that hold sentences."""


Task = tuple[str, Callable[[], str]]
"""A name and what gives its digest."""


def take(task: Task) -> tuple[str, str]:
    """The name and the digest."""
    name, digest = task
    return name, digest()


def short(digest: Any) -> str:
    """What is kept of a digest."""
    return str(digest.hexdigest()[:16])


def stable(value: bytes | None) -> bytes:
    """The bytes of a record without its sentences; bytes that are no JSON object as they are."""
    try:
        fields = orjson.loads(value or b"")
    except orjson.JSONDecodeError:
        return repr(value).encode()
    if not isinstance(fields, dict):
        return repr(value).encode()
    return orjson.dumps({name: held for name, held in fields.items() if name not in FOR_PEOPLE})


def seeds(level: str, first: int, count: int) -> str:
    """Runs of the simulator: each record that any log got, when and where, and the counts of stable words."""
    whole = hashlib.sha256()
    append = SimLog.append

    def recording(log: SimLog, now_ms: int, key: bytes | None, value: bytes | None) -> int:
        offset = append(log, now_ms, key, value)
        whole.update(f"{log.topic} {log.partition} {offset} {now_ms} {key!r} ".encode() + stable(value) + b"\n")
        return offset

    with patch.object(SimLog, "append", recording):
        for seed in range(first, first + count):
            result = run(SimCase(level, seed))
            counts = {name: number for name, number in result.counts.items() if name.startswith(STABLE_COUNTS)}
            whole.update(f"{seed} {result.kind} {sorted(counts.items())}\n".encode())
    return short(whole)


def scenario_files() -> list[Path]:
    """All scenario files."""
    return sorted(FOLDER.glob("*.txt"))


def scenario(path: Path) -> str:
    """The logs that a scenario leaves, and the verdict of each record of the channel for a reader from the beginning."""
    script = Script()
    for block in parse(path.read_text()):
        script.run(block.commands)
    whole = hashlib.sha256()
    partitions = sum(1 for topic, _ in script.world.logs if topic is Topic.CHANNEL)
    for (topic, partition), log in sorted(script.world.logs.items()):
        view = View(partition, partitions)
        for offset, entry in enumerate(log.entries):
            if entry is None:
                continue
            verdict = view.read(offset, entry.key, entry.value).verdict if topic is Topic.CHANNEL else ""
            line = f"{topic} {partition} {offset} {entry.timestamp_ms} {entry.key!r} {verdict} ".encode()
            whole.update(line + stable(entry.value) + b"\n")
    return short(whole)


def contest_runs() -> Iterator[tuple[str, str, int]]:
    """Sixty runs: scenario, contender, seed."""
    for name in CONTEST:
        for who in CONTENDERS:
            for seed in CONTEST_SEEDS:
                yield name, who, seed


def contest(name: str, who: str, seed: int) -> str:
    """All measures, moves and loads of a run."""
    ran = play_here(ContestRun(scenario_source(name), seed, contender(who)))
    if ran.outcome is None:
        raise RuntimeError(ran.error)
    fields = ran.outcome.model_dump(
        mode="json", exclude={"timing": True, "remarks": True, "moves": {"__all__": {"why"}}}
    )
    return short(hashlib.sha256(orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)))


def partitions(seed: int) -> str:
    """Moves of all plans of a random cluster, and the standing of each goal."""
    cluster = random_cluster(seed)
    whole = hashlib.sha256()
    for request in requests(cluster):
        try:
            plan = plan_partitions(cluster.layout, cluster.loads, request)
        except RequestRefusedError:
            whole.update(f"{request.mode} refused\n".encode())
            continue
        moves = [(move.topic, move.partition, move.after, move.leader_after) for move in plan.moves]
        goals = [(goal.name, str(goal.status)) for goal in plan.goals]
        whole.update(f"{request.mode} {moves} {goals}\n".encode())
    return short(whole)
