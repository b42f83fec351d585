"""Names of contenders, and what they stand for."""

import pytest

from shedders.contest.contenders import UnknownContenderError, all_contenders, contender, contenders, default_contenders
from shedders.contest.manager import Manager
from shedders.errors import UnknownStrategyError
from shedders.model.profiles import profile
from shedders.model.strategy import PLACEMENT, SHEDDING, available


def _manager(name: str) -> Manager:
    return Manager(contender(name), lambda: pytest.fail("not asked"), lambda: 0.0, lambda _: ())


def test_every_manager_with_every_shedder_and_placement_both_ways() -> None:
    names = [contender.name for contender in all_contenders()]
    assert len(names) == len(set(names))
    pairs = [name for name in names if "+" in name]
    assert len(pairs) == 2 * len(available(SHEDDING)) * len(available(PLACEMENT)) * 2
    assert {contender.name for contender in default_contenders()} < set(names)


@pytest.mark.parametrize("expected", default_contenders(), ids=lambda item: item.name)
def test_all_that_compete_by_default_can_be_made(expected: object) -> None:
    assert _manager(expected.name).contender == expected  # type: ignore[attr-defined]


def test_pulsars_ways_are_those_of_the_profiles() -> None:
    result = contender("modular/threshold+least-long-term-rate@upstream")
    like = profile("upstream-defaults")
    assert result.overrides["shedding.threshold.upstream"] is True
    assert result.overrides["placement.least-long-term-rate.upstream"] is True
    for part in ("filters", "splitting"):
        for name, value in like.settings["parts"][part].items():
            assert result.overrides[f"parts.{part}.{name}"] == value
    assert _manager(result.name).unloads
    load = _manager(result.name).report_settings().load
    assert load.measure_interval_s == 60.0
    # A sample at each tick of 5 s, also of an old reading.
    assert load.sample_clock().due(0.0, 60.0) == (12, 60.0)


def test_what_is_said_behind_the_name_stands_over_it() -> None:
    manager = _manager(
        "extensible/transfer+least-resource-usage@recommended,shedding.transfer.cool_down_s=7,"
        "load.top_bundles_max=25,balancer.interval_s=30"
    )
    assert manager.report_settings().again_s == 7.0
    assert manager.report_settings().load.top_bundles_max == 25
    assert manager.settings.interval_s == 30.0


def test_settings_of_splits_and_filters_go_by_their_short_names() -> None:
    manager = _manager("extensible/transfer+least-resource-usage@upstream,splitting.max_bandwidth_mib=40")
    assert manager.split_limits.max_bandwidth_mib == 40
    named = contender("modular/avg+avg@upstream,filters.fewest_bundles=false")
    assert "filters.fewest_bundles" not in named.overrides
    assert named.overrides["parts.filters.fewest_bundles"] == "false"


def test_several_at_once() -> None:
    assert [contender.name for contender in contenders("ours profile/production; ours")] == [
        "ours",
        "profile/production",
    ]
    assert [contender.name for contender in contenders("default")] == [
        contender.name for contender in default_contenders()
    ]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("our", "no manager"),
        ("modular/avg@upstream", "not of that form"),
        ("modular/avg+avg@best", "not of that form"),
        ("profile/nope", "unknown profile"),
        ("", "no manager"),
    ],
)
def test_a_name_that_is_none(name: str, said: str) -> None:
    with pytest.raises(UnknownContenderError, match=said) as caught:
        contender(name)
    assert "statechannel simulate list" in str(caught.value.hint)


def test_a_strategy_that_is_not_there() -> None:
    with pytest.raises(UnknownStrategyError):
        contender("modular/averg+avg@upstream")
