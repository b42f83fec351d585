"""A short run of the campaign on real processes: what `make faults` does for an hour, once."""

import asyncio
from pathlib import Path

import pytest

from tests.faults.faults_of_brokers import Kill, PauseLost
from tests.faults.faults_of_links import LinkDeaf
from tests.faults.plan import LEASE_S, Plan, Step
from tests.faults.run import Run
from tests.support.waits import WAIT_S

pytestmark = pytest.mark.kafka


def test_a_kill_a_pause_and_a_deaf_link_leave_nothing_to_complain_of(tmp_path: Path):
    plan = Plan(seed=6, nodes=1, brokers=["b1", "b2", "b3"], lease_s=LEASE_S, bundles=[4])
    plan.steps = [Step([PauseLost("owner", 6.5), LinkDeaf("b3", 4.0), Kill("leader", 1.0)], apart_s=0.5)]
    result = asyncio.run(Run(plan, tmp_path, patience_s=WAIT_S).run())
    assert result.violations == {}, result.figures
    assert result.figures["faults"] == {"pause-lost": 1, "link-deaf": 1, "kill": 1}
    assert result.figures["writes"] > 100
    assert result.figures["lookups"] > 20
    assert result.figures["calls"]["write ok"] > 100
    assert result.figures["calls"]["read ok"] > 20
    assert result.figures["services"] > 4
    assert result.figures["ends"].get("-9", 0) >= 1, "the kill took place"
