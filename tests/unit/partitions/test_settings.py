"""Settings of the planner: their page, where they come from, and that brokers of the channel know them."""

from pathlib import Path

import pytest

from shedders.kafka_rebalance.cli.arguments import partitions_settings
from shedders.kafka_rebalance.settings import PartitionsSettings, no_extension
from statechannel.settings import SettingsError, load
from tests.docs.settings_pages import partitions_page


def test_every_setting_is_on_the_page_with_a_reason() -> None:
    rows = [line for line in partitions_page() if line.startswith("| `")]
    assert len(rows) == sum(
        len(group.model_fields) for group in (PartitionsSettings, *_groups(PartitionsSettings))
    ) - len(_groups(PartitionsSettings))
    assert all(len(row.split(" | ")[-1]) > 20 for row in rows)


def _groups(model: type) -> list[type]:
    return [field.annotation for field in model.model_fields.values() if hasattr(field.annotation, "model_fields")]


def test_flags_and_files_set_them(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text('[extensions.partitions.plan]\nexcluded_topics = ["tmp-.*"]\n')
    settings = load(config=tmp_path / "s.toml", flags=["extensions.partitions.pace.moves_per_broker=7"])
    result = partitions_settings(settings)
    assert result.plan.excluded_topics == ["tmp-.*"]
    assert result.pace.moves_per_broker == 7
    assert result.plan.time_budget_s == PartitionsSettings().plan.time_budget_s


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("pace.moves_per_brokr=7", "unknown setting `extensions.partitions.pace.moves_per_brokr`"),
        ("pace.moves_per_broker=0", "extensions.partitions.pace.moves_per_broker"),
        ("plan.time_budget_s=nan", "extensions.partitions.plan.time_budget_s"),
    ],
)
def test_a_wrong_one_is_named(flag: str, words: str) -> None:
    settings = load(flags=[f"extensions.partitions.{flag}"])
    with pytest.raises(SettingsError) as result:
        partitions_settings(settings)
    assert words in str(result.value)


def test_brokers_of_the_channel_check_them_and_use_none() -> None:
    assert no_extension(None, {"enabled": True, "pace": {"poll_s": 2}}) is None
    with pytest.raises(SettingsError):
        no_extension(None, {"pase": {}})
