"""Settings of load data: upstream's defaults, bounds, and those that must go together."""

import pytest
from pydantic import ValidationError

from loaddata.model.broker_load import ResourceWeights
from loaddata.report.record import BUNDLES_MAX
from loaddata.settings import LoadSettings


def test_upstreams_defaults() -> None:
    settings = LoadSettings()
    assert settings.weights() == ResourceWeights(1, 0, 0, 1, 1)
    assert settings.update_rules().history == 0.9
    assert (settings.report_threshold_percent, settings.report_max_age_s, settings.ttl_s) == (10, 900, 1_800)
    assert settings.top_rules().count_max == 10
    assert settings.view_rules().ttl_s == settings.expiry_rules().ttl_s == 1_800


def test_every_setting_says_why_and_carries_its_unit_or_none() -> None:
    for name, field in LoadSettings.model_fields.items():
        assert field.description, name
        assert field.description.endswith("."), name
    named = {
        word.strip("(),")
        for field in LoadSettings.model_fields.values()
        for word in str(field.json_schema_extra["pip_192"]).split()  # type: ignore[index,call-overload]
        if word.startswith("loadBalancer")
    }
    assert {"loadBalancerReportUpdateThresholdPercentage", "loadBalancerBrokerLoadDataTTLInSeconds"} <= named


def test_as_many_as_fit() -> None:
    assert (
        LoadSettings(top_bundles_max=0).top_rules().count_max == BUNDLES_MAX - 20
    )  # with what is added as many as fit


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"ttl_s": 900.0}, "ttl_s must be larger"),
        ({"retention_s": 1_799.0}, "retention_s must be at least twice"),
        ({"stale_s": 9.0}, "stale_s must be at least twice"),
        ({"history": 1.0}, "less than 1"),
        ({"acks": "all"}, "0 or 1"),
        ({"top_bundles_max": BUNDLES_MAX + 1}, "less than or equal"),
        ({"measure_interval_s": float("nan")}, "finite"),
        ({"nic_speed_gbit": 0}, "greater than 0"),
        ({"unknown": 1}, "Extra inputs"),
    ],
)
def test_refused(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        LoadSettings(**wrong)  # type: ignore[arg-type]
