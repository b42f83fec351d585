"""All brokers killed at once, with junk that nobody has paid for, on a log that the cleaner has been at: nothing changes.

`make faults ARGS="--runs 1 --steps 20 --only kill-all-in-debt"` does the same twenty times.
"""

import asyncio
from pathlib import Path

from tests.faults.faults_in_debt import KillAllInDebt
from tests.faults.plan import Plan, Step
from tests.faults.run import Run

OUTAGES_S = (2.0,)


def test_total_outages_with_unpaid_junk_change_nothing(tmp_path: Path) -> None:
    plan = Plan(seed=16, nodes=1, brokers=["b1", "b2", "b3"], lease_s=None, bundles=[4, 2])
    plan.compacting = plan.in_debt = True
    plan.steps = [Step([KillAllInDebt("all", hold_s)]) for hold_s in OUTAGES_S]
    result = asyncio.run(Run(plan, tmp_path).run())
    assert result.violations == {}, result.figures
    assert result.figures["keys_changed"] == [0] * len(OUTAGES_S)
    assert result.figures["cold_starts"] == 0
    assert min(result.figures["unpaid_then"]) > 0, "the junk was unpaid"
    assert result.figures["records_cleaned"] > 0, "the cleaner has been at the log"
