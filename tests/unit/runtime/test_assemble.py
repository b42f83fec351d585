"""What a member is made with follows the settings, bound for bound."""

import dataclasses
from typing import Any

from statechannel.broker.assembly import access, host_options, restart_policy
from statechannel.broker.driver import DriverOptions
from statechannel.broker.host_options import HostOptions
from statechannel.broker.supervision import RestartPolicy
from statechannel.settings import load
from statechannel.settings.tree import groups

PER_TURN = {"observe_s", "driver", "desk"}


def different(setting: Any, other: Any) -> set[str]:
    return {f.name for f in dataclasses.fields(setting) if getattr(setting, f.name) != getattr(other, f.name)}


def test_defaults_are_the_same_wherever_they_stand() -> None:
    inbox = DriverOptions(inbox_limit=load().limits.inbox_max)
    assert host_options(load()) == dataclasses.replace(HostOptions(), driver=inbox)
    assert restart_policy(load()) == RestartPolicy()


def test_every_bound_follows_its_setting() -> None:
    flags = [
        f"{group}.{name}={field.default * 2 if name == 'restart_window_s' else field.default * 1.5}"
        if isinstance(field.default, float)
        else f"{group}.{name}={field.default + 1}"
        for group in ("runtime", "requests")
        for name, field in groups()[group].model_fields.items()
    ]
    others = ["limits.inbox_max=1234", "observe.debt_alarm_fraction=0.3", "hooks.deadline_s=14"]
    changed = load(flags=[*flags, *others])
    options, plain = host_options(changed), HostOptions()
    assert different(options, plain) | PER_TURN == {f.name for f in dataclasses.fields(HostOptions)}
    assert different(options.desk, plain.desk) == {f.name for f in dataclasses.fields(plain.desk)}
    assert options.driver.inbox_limit == 1234
    assert different(restart_policy(changed), RestartPolicy()) == {f.name for f in dataclasses.fields(RestartPolicy)}


def test_access_is_that_of_the_settings() -> None:
    result = access(load(flags=["kafka.bootstrap_servers=127.0.0.1:1", "channel.name=mine"]), client_id="me")
    assert (result.client.bootstrap_servers, result.topics.channel) == ("127.0.0.1:1", "mine")
