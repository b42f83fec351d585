"""Profiles and how a strategy and its settings are chosen."""

import json
from collections.abc import Mapping
from typing import ClassVar

import pytest

from shedders.balancer.active_strategies import choose as choose_active
from shedders.balancer.active_strategies import is_known
from shedders.balancer.settings import BalancerSettings
from shedders.errors import StrategyFailedError, UnknownStrategyError
from shedders.filters.rules import FilterSettings
from shedders.model.profiles import PROFILES, UnknownProfileError
from shedders.model.strategy import KINDS, StrategySettings, StrategySettingsError, find, make, parse_flags, settings_of
from shedders.snapshots.model import Snapshot
from shedders.snapshots.selection import Flags, choose, part_settings, pipeline_of
from shedders.split.triggers import SplitSettings
from tests.support.strategies import install


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    install(
        monkeypatch,
        shedding={
            "no-module": "no.such.module:X",
            "no-class": "shedders.model.plan:Nothing",
            "no-strategy": "shedders.model.plan:Plan",
            "a-function": "shedders.model.moved_cluster:after_moves",
        },
    )


def snapshot(**fields: object) -> Snapshot:
    return Snapshot(kind="statechannel-snapshot", format=1, brokers={}, bundles={}, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", PROFILES)
def test_every_profile_can_be_used(name: str) -> None:
    profile = PROFILES[name]
    for kind in KINDS:
        chosen = choose(snapshot(profile=name), kind)
        assert chosen.name == profile.strategies[kind]
        assert make(kind, chosen.name, profile.settings.get(kind, {}).get(chosen.name)) is not None
    for kind, by_name in profile.settings.items():
        for strategy, values in by_name.items():
            if kind == "parts":
                model = {"filters": FilterSettings, "splitting": SplitSettings}[strategy]
                assert settings_of(model, strategy, values)
            else:
                assert settings_of(find(kind, strategy).Settings, strategy, values)


def test_the_upstream_profiles_are_upstream_wherever_there_is_a_switch() -> None:
    for name in ("upstream-defaults", "upstream-extensible"):
        for kind in ("shedding", "placement"):
            assert choose(snapshot(profile=name), kind).settings_fields["upstream"] is True
        assert part_settings(snapshot(profile=name), "filters", FilterSettings).upstream
        assert part_settings(snapshot(profile=name), "splitting", SplitSettings).upstream


@pytest.mark.parametrize(
    ("profile", "checks"), [("upstream-defaults", 0), ("upstream-extensible", 3), ("default", 8), ("production", 8)]
)
def test_how_long_a_bundle_is_above_a_limit_before_it_is_split(profile: str, checks: int) -> None:
    assert part_settings(snapshot(profile=profile), "splitting", SplitSettings).hit_threshold == checks


def test_the_upstream_defaults_are_those_of_broker_conf() -> None:
    shedding = choose(snapshot(profile="upstream-defaults"), "shedding").settings_fields
    assert (shedding["threshold_percent"], shedding["history_share"]) == (10.0, 0.9)
    assert shedding["min_unload_mib_per_s"] == 10.0
    assert choose(snapshot(profile="upstream-defaults"), "placement").settings_fields["overloaded_percent"] == 85.0


def test_the_recommendation_for_production() -> None:
    uniform = choose(snapshot(profile="production"), "shedding").settings_fields
    assert (uniform["max_rate_difference_percent"], uniform["max_throughput_ratio"]) == (50.0, 4.0)
    assert (uniform["max_bundles_per_cycle"], uniform["max_unload_share"]) == (5, 0.5)
    assert choose(snapshot(profile="production"), "placement").settings_fields["overloaded_percent"] == 120.0
    split = part_settings(snapshot(profile="production"), "splitting", SplitSettings)
    assert (split.max_bundles, split.max_topics, split.max_sessions) == (512, 100, 1000)
    assert (split.max_msg_rate, split.max_bandwidth_mib, split.unload_children) == (10_000, 100, False)
    assert choose(snapshot(profile="production"), "split").name == "flow-or-qps-equally-divide"


def test_an_unknown_profile_is_told_with_what_there_is() -> None:
    with pytest.raises(UnknownProfileError) as caught:
        choose(snapshot(profile="producton"), "shedding")
    assert str(caught.value) == "unknown profile `producton`"
    assert caught.value.hint.startswith("did you mean production? Known profiles: default, modular, upstream-defaults")


def test_the_nearest_choice_wins() -> None:
    """Defaults, the profile, the snapshot, the command line: each stands over the ones before."""
    named = snapshot(
        profile="production",
        settings={"shedding": {"uniform": {"max_unload_share": 0.3, "grace_s": 7}}},  # type: ignore[arg-type]
    )
    settings_fields = choose(named, "shedding", values={"grace_s": 9}).settings_fields
    assert (settings_fields["max_bundles_per_cycle"], settings_fields["max_unload_share"]) == (5, 0.3)
    assert settings_fields["grace_s"] == 9
    assert choose(named, "shedding", profile="production").settings_fields["max_unload_share"] == 0.5
    assert choose(named, "shedding", name="overload").name == "overload"
    other = named.model_copy(update={"strategies": named.strategies.model_copy(update={"shedding": "threshold"})})
    assert choose(other, "shedding").name == "threshold"
    assert choose(other, "shedding", profile="production").name == "uniform"


def test_upstream_names_of_split_algorithms_are_taken() -> None:
    assert choose(snapshot(), "split", name="topic_count_equally_divide").name == "topic-count-equally-divide"


def test_flags_are_for_the_strategy_or_for_what_stands_around_it() -> None:
    flags = Flags.parse(["grace_s=5", "filters.max_topics=7", "placement.gap_percent=3"])
    assert flags.own == {"grace_s": "5"}
    chosen, pipeline = pipeline_of(snapshot(), flags=flags)
    assert pipeline.settings.max_topics == 7
    assert chosen.settings_fields["gap_percent"] == 3.0


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("x=1", "1"),
        ("x=none", None),
        ("x=[1, 2]", [1, 2]),
        ('x={"a": 1}', {"a": 1}),
        ("x=[broken", "[broken"),
        ("x= a=b ", "a=b"),
        ("x=", ""),
    ],
)
def test_flags_are_read(flag: str, value: object) -> None:
    assert parse_flags([flag]) == {"x": value}


@pytest.mark.parametrize("flag", ["x", "=1", " =1"])
def test_flags_that_are_none(flag: str) -> None:
    with pytest.raises(StrategySettingsError, match="not of the form name=value"):
        parse_flags([flag])


@pytest.mark.parametrize(
    "values", [{"target_sdt": 1}, {"target_std": "much"}, {"target_std": -1}, {"hit_threshold": 1.5}]
)
def test_settings_that_a_strategy_does_not_take(values: dict[str, object]) -> None:
    with pytest.raises(StrategySettingsError) as caught:
        choose(snapshot(), "shedding", name="transfer", values=values)
    assert next(iter(values)) in str(caught.value)
    assert caught.value.exit_code == 8


class Renewed(StrategySettings):
    """Settings of a strategy that once had another one."""

    gone: ClassVar[Mapping[str, str]] = {"hits": "`patience` replaces it"}
    patience: float = 1.0


def test_a_setting_that_went_away_is_named_with_what_replaces_it() -> None:
    with pytest.raises(StrategySettingsError) as caught:
        settings_of(Renewed, "shedding.mine", {"hits": 3, "patients": 2})
    assert ["`patience` replaces it" in problem for problem in caught.value.problems] == [True, False]
    assert "hits" not in caught.value.hint


@pytest.mark.parametrize("name", ["hits", "hit_s", "urgent_percent", "noise_factor", "move_cost_percent"])
def test_former_settings_of_the_default_are_refused_wherever_they_come_from(name: str) -> None:
    model = find("shedding", "weighted-move").Settings
    calls = [
        lambda: settings_of(model, "shedding.weighted-move", {name: 1}),
        lambda: choose_active(BalancerSettings(), {f"shedding.weighted-move.{name}": 1}),
    ]
    for call in calls:
        with pytest.raises(StrategySettingsError) as caught:
            call()
        assert model.gone[name] in str(caught.value)
    assert not set(model.gone) & set(model.model_fields)
    assert not is_known(f"shedding.weighted-move.{name}")


def test_an_unknown_strategy_is_told_with_what_there_is() -> None:
    with pytest.raises(UnknownStrategyError) as caught:
        find("shedding", "treshold")
    assert str(caught.value) == "unknown shedding strategy `treshold`"
    assert "did you mean threshold?" in caught.value.hint
    assert "uniform" in caught.value.hint


@pytest.mark.parametrize("name", ["no-module", "no-class", "no-strategy", "a-function"])
def test_a_strategy_that_cannot_be_used_is_refused(name: str) -> None:
    with pytest.raises(StrategyFailedError, match=name):
        find("shedding", name)


def test_settings_survive_json() -> None:
    for name in PROFILES:
        for kind in KINDS:
            settings_fields = choose(snapshot(profile=name), kind).settings_fields
            assert json.loads(json.dumps(settings_fields)) == settings_fields
