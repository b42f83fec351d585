"""Settings that a program makes: refused with our words, whoever makes them, and checked where they are used."""

from pathlib import Path
from typing import Any

import pytest

from statechannel.api import SettingGroups, Settings, SettingsError, StateChannel, StateChannelError, load_settings
from statechannel.settings.groups_engine import HookSettings
from statechannel.settings.tree import groups

KAFKA = {"bootstrap_servers": "127.0.0.1:1"}
LATE = Settings(hooks=HookSettings(deadline_s=100))


async def refused(settings: Settings | None = None, **arguments: object) -> StateChannelError:
    with pytest.raises(StateChannelError) as error:
        await StateChannel.open(settings, broker="b1", **arguments)  # type: ignore[arg-type]
    return error.value


WRONG: list[dict[str, Any]] = [
    {"hooks": {"deadline": 2}},
    {"hook": {"deadline_s": 2}},
    {"hooks": {"deadline_s": "soon"}},
    {"kafka": {"properties": {"sasl.password": 7}}},
    {"hooks": 7},
]


@pytest.mark.parametrize("groups", WRONG)
def test_what_is_wrong_is_said_in_the_words_of_settings(groups: dict[str, Any]) -> None:
    with pytest.raises(SettingsError) as error:
        Settings(**groups)
    assert "pydantic" not in str(error.value)


async def test_rules_between_settings_hold_for_settings_of_a_program_too() -> None:
    error = await refused(LATE)
    assert isinstance(error, SettingsError)
    assert "hooks.deadline_s < repair.in_flight_limit_s must hold (hooks.deadline_s = 100.0, " in str(error)


async def test_the_deadline_of_hooks_is_an_argument() -> None:
    error = await refused(kafka=KAFKA, repair={"in_flight_limit_s": 7})
    assert str(error).startswith("hooks.deadline_s < repair.in_flight_limit_s must hold")
    assert "`hook_settings={'deadline_s': ...}`" in error.hint
    assert "`repair={'in_flight_limit_s': ...}`" in error.hint
    both = await refused(kafka=KAFKA, hook_settings={"deadline_s": 100}, repair={"in_flight_limit_s": 7})
    assert "hooks.deadline_s = 100.0, repair.in_flight_limit_s = 7.0" in str(both)
    wrong = await refused(kafka=KAFKA, hook_settings={"deadline_s": "soon"})
    assert "hooks.deadline_s=soon" in str(wrong)


async def test_the_listed_groups_are_arguments_that_are_taken() -> None:
    error = await refused(hok={})
    groups = error.hint.partition("Groups, each a mapping: ")[2].rstrip(".").split(", ")
    assert "hooks" not in groups
    assert "hook_settings" in error.hint
    for name in groups:
        assert not str(await refused(**{name: {"x": 1}})).startswith(f"`{name}`"), name


def test_a_program_may_load_what_a_broker_process_loads(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text("[hooks]\ndeadline_s = 3\n[channel]\nname = 'orders'\n")
    settings = load_settings(file, hooks={"deadline_s": 2}, extensions={"balancer": {"enabled": False}})
    assert (settings.hooks.deadline_s, settings.channel.name) == (2.0, "orders")
    assert settings.extensions == {"balancer": {"enabled": False}}
    assert load_settings(str(file)).hooks.deadline_s == 3.0
    with pytest.raises(SettingsError, match="must hold") as broken:
        load_settings(hooks={"deadline_s": 100})
    assert "hook_settings" not in broken.value.hint, "it takes the group by its name"
    with pytest.raises(SettingsError, match=r"an argument: unknown setting `hooks\.deadline`"):
        load_settings(hooks={"deadline": 100})


def test_every_group_but_that_of_the_hooks_is_in_the_signature_of_open() -> None:
    assert {*SettingGroups.__annotations__, "hooks"} == groups().keys()
