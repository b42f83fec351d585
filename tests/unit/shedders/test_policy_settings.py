"""Policies of kind `setting`: names, types, bounds, and what goes with what."""

from typing import Any

import pytest

from shedders.balancer.active_strategies import UnknownSettingError, balanced_by, checked, is_known, known_settings
from shedders.balancer.settings import BalancerSettings
from shedders.policies.kinds import canonical
from statechannel.errors import StateChannelError


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("filters.max_topics", 100, 100),
        ("filters.max_topics", "100", 100),
        ("parts.filters.failure_domains", "false", False),
        ("splitting.max_bundles", 64, 64),
        ("splitting.measure", "long", "long"),
        ("shedding.uniform.max_unload_share", "0.5", 0.5),
        ("shedding", "uniform", "uniform"),
        ("split", "range_equally_divide", "range-equally-divide"),
        ("profile", "production", "production"),
        ("balancer.interval_s", "5", 5.0),
        ("balancer.budget.moves", 3, 3),
    ],
)
def test_values_as_the_model_has_them(name: str, value: Any, expected: Any) -> None:
    assert checked(canonical(name), value) == expected


@pytest.mark.parametrize(
    ("name", "value", "message", "hint"),
    [
        ("filters.max_topic", 1, "unknown setting `parts.filters.max_topic`", "filters.max_topics"),
        ("shedding.uniform.max_unload_shares", 1, "unknown setting", "did you mean shedding.uniform.max_unload_share?"),
        ("max_topics", 1, "unknown setting `max_topics`", "did you mean filters.max_topics?"),
        ("shedding.unform.max_unload_share", 1, "unknown shedding strategy `unform`", "did you mean uniform?"),
        ("shedding", "unform", "unknown shedding strategy `unform`", "did you mean uniform?"),
        ("profile", "prod", "unknown profile `prod`", "Known profiles:"),
        ("balancer.source", "none", "unknown setting `balancer.source`", ""),
        ("balancer.interval_s", "often", "balancer.interval_s", "Settings of balancer"),
        ("balancer.interval_s", 0, "balancer.interval_s", ""),
        ("balancer.budget.moves", 0, "balancer.budget.moves", ""),
        ("filters.max_topics", -1, "parts.filters.max_topics", ""),
        ("filters.max_topics", [1], "parts.filters.max_topics", ""),
        ("shedding.uniform.max_unload_share", None, "max_unload_share", ""),
    ],
)
def test_what_is_refused(name: str, value: Any, message: str, hint: str) -> None:
    with pytest.raises(StateChannelError) as caught:
        checked(canonical(name), value)
    assert message in str(caught.value)
    assert hint in caught.value.hint
    assert caught.value.exit_code == 8


def test_every_name_that_is_listed_is_one() -> None:
    names = list(known_settings())
    assert len(names) == len(set(names)) > 100
    for name in names:
        with pytest.raises(StateChannelError) as caught:
            checked(canonical(name), {"no": "value"})
        assert not isinstance(caught.value, UnknownSettingError)


def test_what_stands_already_does_not_hinder_and_other_owners_are_not_looked_at() -> None:
    others = {"parts.filters.max_topics": 5, "parts.filters.gone": 1, "shedding.uniform.max_unload_share": 0.1}
    assert checked("parts.filters.failure_domains", False, others) is False


def test_the_balancer_takes_what_is_its_own() -> None:
    configured = BalancerSettings(interval_s=60.0)
    settings = balanced_by(
        configured, {"balancer.interval_s": 5.0, "balancer.budget.moves": 3, "parts.filters.max_topics": 1}
    )
    assert (settings.interval_s, settings.budget.moves) == (5.0, 3)
    assert settings.budget.load_percent == configured.budget.load_percent
    assert balanced_by(configured, {}) == configured
    with pytest.raises(StateChannelError):
        balanced_by(configured, {"balancer.interval_s": "often"})
    with pytest.raises(UnknownSettingError):
        balanced_by(configured, {"balancer.later": 1})


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("shedding", True),
        ("profile", True),
        ("filters.max_topics", True),
        ("parts.filters.max_topics", True),
        ("balancer.budget.moves", True),
        ("shedding.transfer", False),
        ("shedding.nosuch.x", False),
        ("filters.nosuch", False),
        ("balancing", False),
        ("balancer", False),
        ("x" * 64, False),
    ],
)
def test_names_that_mean_nothing_here_are_told_apart(name: str, known: bool) -> None:
    assert is_known(name) is known
