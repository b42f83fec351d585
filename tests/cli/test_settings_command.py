"""`statechannel settings`: the data of design/reference/settings.md, in the wheel."""

import json
from collections.abc import Callable

from click.testing import Result

from statechannel.settings.description import every_setting
from statechannel.settings.tree import groups

Run = Callable[..., Result]


def test_every_setting_is_listed_with_those_of_extensions(run: Run) -> None:
    rows = json.loads(run("settings", "list", "--output", "json").stdout)["settings"]
    names = [row["name"] for row in rows]
    assert names == [setting.name for setting in every_setting()]
    assert set(names) >= {f"{group}.{name}" for group, model in groups().items() for name in model.model_fields}
    assert "extensions.balancer.interval_s" in names
    assert "extensions.partitions.pace.moves_per_broker" in names
    assert all(row["about"] for row in rows)
    table = run("settings", "list", "membership").stdout
    assert "membership.expiry_s" in table
    assert "kafka." not in table


def test_a_setting_is_explained_with_its_value_here(run: Run) -> None:
    (row,) = json.loads(
        run("settings", "explain", "membership.expiry_s", "--set", "membership.expiry_s=9", "--output", "json").stdout
    )["settings"]
    assert (row["default"], row["value"], row["environment"]) == ("6", "9", "STATECHANNEL_MEMBERSHIP__EXPIRY_S")
    assert any("membership.interval_s" in rule for rule in row["relations"])
    text = run("settings", "explain", "membership.expiry_s").stdout
    assert "≥ 0.5, ≤ 600" in text
    assert "[membership] expiry_s = VALUE" in text
    assert "did you mean `membership.expiry_s`?" in run("settings", "explain", "membership.expire_s").stderr


def test_no_secret_is_shown(run: Run) -> None:
    result = run("settings", "explain", "kafka", "-X", "sasl.password=hunter22", "--output", "json")
    assert result.exit_code == 0
    assert "hunter22" not in result.output
