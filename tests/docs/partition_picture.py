"""Draws the picture of the plan in partitions.md: `python -m tests.docs.partition_picture` (or `make docs`)."""

from __future__ import annotations

import sys
from pathlib import Path

from loaddata.samples.cluster_files import read_layout_file
from shedders.kafka_rebalance.planning.picture import plan_picture
from shedders.kafka_rebalance.planning.plan import ReassignmentPlan
from shedders.kafka_rebalance.planning.planner import plan_partitions
from shedders.kafka_rebalance.planning.request import PlanMode, PlanRequest

ROOT = Path(__file__).parents[2]
LAYOUT = ROOT / "design/examples/partitions/cluster.json"
PICTURE = ROOT / "design/partitions/add-a-broker.svg"


def example_plan() -> ReassignmentPlan:
    """A fourth broker joins the example's cluster."""
    layout, loads = read_layout_file(LAYOUT)
    return plan_partitions(layout, loads, PlanRequest(mode=PlanMode.ADD_BROKERS, subjects=(4,)))


def main() -> int:
    """Draw it anew where it is of another plan: other versions of matplotlib draw the same one a bit differently."""
    plan = example_plan()
    if not PICTURE.exists() or plan.id not in PICTURE.read_text(encoding="utf-8"):
        PICTURE.write_text(plan_picture(plan).svg(), encoding="utf-8")
        sys.stdout.write(f"wrote {PICTURE.relative_to(ROOT)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
