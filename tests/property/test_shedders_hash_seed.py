"""The same plans and placements whatever PYTHONHASHSEED is: one script, run with several."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
from importlib import import_module
from shedders.conformance.checker import answers
from shedders.shedding.avg import AvgShedder
from shedders.model.cluster import Policies
from shedders.model.strategy import PLACEMENT, SHEDDING, SPLIT
from shedders.shedding.deviation import DeviationShedder
from shedders.placement.least_long_term_rate import LeastLongTermMessageRate
from shedders.placement.least_resource_usage import LeastResourceUsage, ModularLeastResourceUsage
from shedders.shedding.overload import OverloadShedder
from shedders.shedding.threshold import RangeThresholdShedder
from shedders.placement.round_robin import RoundRobin
from shedders.shedding.threshold import ThresholdShedder
from shedders.shedding.uniform import UniformLoadShedder
from tests.support.snapshots import Shape, cluster
from tests.support.strategies import declared

made = cluster(7, Shape(brokers=12, bundles_each=20, hot=3), Policies(excluded=frozenset({"tenant/ns-1", "tenant/ns-2"})))
for cls, more in (
    (ThresholdShedder, {"threshold_percent": 3}),
    (RangeThresholdShedder, {"threshold_percent": 3}),
    (OverloadShedder, {"overloaded_percent": 5}),
    (UniformLoadShedder, {}),
    (DeviationShedder, {}),
    (AvgShedder, {"hit_count_high": 1, "hit_count_low": 1, "low_threshold": 1}),
):
    for upstream in (False, True):
        print(cls(cls.Settings(upstream=upstream, **more)).plan(made, {}))
for cls in (LeastResourceUsage, ModularLeastResourceUsage, LeastLongTermMessageRate, RoundRobin, AvgShedder):
    for upstream in (False, True):
        strategy, memory = cls(cls.Settings(upstream=upstream)), {}
        for bundle in list(made.bundles.values())[:5]:
            answer = strategy.place(made, bundle, made.broker_names, {}, memory)
            memory = answer.memory
            print(answer)
for kind, group in (("shedding", SHEDDING), ("placement", PLACEMENT), ("split", SPLIT)):
    for where in declared()[group].values():
        module, _, name = where.partition(":")
        print(where, answers(kind, getattr(import_module(module), name)))
"""


def test_hash_seed() -> None:
    root = Path(__file__).parents[2]
    outputs = []
    for seed in ("0", "4242"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], env=env, cwd=root, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert outputs[0].count("Move(") > 50
    assert outputs[0] == outputs[1]
