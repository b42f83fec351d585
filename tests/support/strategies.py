"""Our strategies by entry point, for tests and benches that must not depend on what happens to be installed."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from shedders import strategy
from statechannel.cli import main

ROOT = Path(__file__).parents[2]


@cache
def declared() -> Mapping[str, Mapping[str, str]]:
    """The entry points of this working tree, by group and name."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found: Mapping[str, Mapping[str, str]] = tomllib.loads(text)["project"]["entry-points"]
    return {**WANTED, **found, main.COMMANDS_GROUP: {**found[main.COMMANDS_GROUP], **WANTED[main.COMMANDS_GROUP]}}


def points(group: str, **more: str) -> EntryPoints:
    """Entry points of a group, with some more."""
    both = {**declared().get(group, {}), **more}
    return EntryPoints(EntryPoint(name, value, group) for name, value in both.items())


def install(monkeypatch: pytest.MonkeyPatch, **more: Mapping[str, str]) -> None:
    """Make them, and more of the groups `shedding`, `placement` and `split`, the ones that are installed."""

    def entry_points(*, group: str) -> EntryPoints:
        return points(group, **more.get(group.rpartition(".")[2], {}))

    monkeypatch.setattr(strategy, "entry_points", entry_points)
    monkeypatch.setattr(main, "_registered", lambda: {point.name: point for point in points(main.COMMANDS_GROUP)})


WANTED: Mapping[str, Mapping[str, str]] = {
    main.COMMANDS_GROUP: {
        "place": "shedders.cli.place:app",
        "shed": "shedders.cli.shed:app",
        "snapshot": "shedders.cli.snapshot:app",
        "split": "shedders.cli.split:app",
        "strategy": "shedders.cli.strategy:app",
    },
    strategy.SHEDDING: {
        "avg": "shedders.avg:AvgShedder",
        "deviation": "shedders.deviation:DeviationShedder",
        "overload": "shedders.overload:OverloadShedder",
        "range-threshold": "shedders.range_threshold:RangeThresholdShedder",
        "threshold": "shedders.threshold:ThresholdShedder",
        "transfer": "shedders.transfer:TransferShedder",
        "uniform": "shedders.uniform:UniformLoadShedder",
    },
    strategy.PLACEMENT: {
        "avg": "shedders.avg:AvgShedder",
        "least-long-term-rate": "shedders.least_long_term_rate:LeastLongTermMessageRate",
        "least-resource-usage": "shedders.least_resource_usage:LeastResourceUsage",
        "least-resource-usage-modular": "shedders.least_resource_usage:ModularLeastResourceUsage",
        "round-robin": "shedders.round_robin:RoundRobin",
    },
    strategy.SPLIT: {
        "flow-or-qps-equally-divide": "shedders.split_flow_or_qps:SplitFlowOrQps",
        "range-equally-divide": "shedders.split_range:SplitRange",
        "specified-positions-divide": "shedders.split_specified:SplitSpecified",
        "topic-count-equally-divide": "shedders.split_topic_count:SplitTopicCount",
    },
}
"""What is not in pyproject.toml yet."""
