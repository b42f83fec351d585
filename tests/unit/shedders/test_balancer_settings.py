"""Settings of the balancing extension: their page, what they bound, and the profile by manager."""

import pytest

from shedders.balancer.active_strategies import choose
from shedders.balancer.settings import BalancerSettings
from shedders.decisions.builder import RecordBounds
from shedders.model.profiles import UnknownProfileError
from statechannel.kafka.topic_policy import DECISIONS_RETENTION_MS, DECISIONS_SEGMENT_MS


def test_every_setting_says_what_it_is_for() -> None:
    for name, field in BalancerSettings.model_fields.items():
        assert field.description, name


def test_what_is_written_down_is_bounded_as_the_parts_would_by_themselves() -> None:
    settings = BalancerSettings()
    assert settings.record_bounds() == RecordBounds()
    assert BalancerSettings(record_bytes=20_000, text_chars=40).record_bounds() == RecordBounds(20_000, 40)
    assert settings.decisions_retention_s * 1_000 == DECISIONS_RETENTION_MS
    assert settings.decisions_segment_s * 1_000 == DECISIONS_SEGMENT_MS


def test_the_manager_chooses_the_profile_where_nobody_names_one() -> None:
    assert choose(BalancerSettings()).profile == "default"
    modular = choose(BalancerSettings(), manager="modular")
    assert modular.profile == "modular"
    expected = {"shedding": "threshold", "placement": "least-long-term-rate", "split": "range-equally-divide"}
    assert modular.names == expected
    assert not any(getattr(modular.settings[kind], "upstream", False) for kind in modular.settings)
    own = BalancerSettings(modular_profile="production")
    assert choose(own, manager="modular").profile == "production"
    assert choose(own).profile == "default"


def test_a_profile_that_is_named_stands_whoever_manages() -> None:
    named = BalancerSettings(profile="production")
    assert choose(named, manager="modular").profile == "production"
    assert choose(named, {"profile": "upstream-defaults"}, manager="modular").profile == "upstream-defaults"
    assert choose(BalancerSettings(), {"shedding": "avg"}, manager="modular").names["shedding"] == "avg"


def test_a_profile_for_the_modular_manager_that_does_not_exist_is_refused_before_it_is_needed() -> None:
    with pytest.raises(UnknownProfileError):
        choose(BalancerSettings(modular_profile="modulr"))
