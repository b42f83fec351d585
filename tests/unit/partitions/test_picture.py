"""The picture of a plan: the same bytes each time, bars for few brokers, lines for many."""

from dataclasses import replace

from shedders.kafka_rebalance.planning.picture import plan_picture
from tests.unit.partitions.plans import PLAN, figures


def test_it_has_what_is_known_and_is_the_same_each_time() -> None:
    svg = plan_picture(PLAN).svg()
    assert svg == plan_picture(PLAN).svg()
    for words in ("disk", "bytes in", "bytes out", "replicas", "leaders", "before", "after", "mean after", PLAN.id):
        assert words in svg
    assert "CPU" not in svg, "nothing is known of it"
    assert plan_picture(PLAN).of("png").startswith(b"\x89PNG")


def test_many_brokers_are_lines() -> None:
    before, after = figures(1, 1, None), figures(2, 1, None)
    many = tuple(replace(PLAN.brokers[0], id=number, before=before, after=after) for number in range(200))
    svg = plan_picture(replace(PLAN, brokers=many)).svg()
    assert "largest first" in svg
    assert "disk" not in svg
    assert len(svg) < 60_000


def test_a_plan_without_brokers() -> None:
    assert "<svg" in plan_picture(replace(PLAN, brokers=())).svg()
