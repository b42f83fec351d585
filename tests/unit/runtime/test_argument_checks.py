"""Which arguments pass and which are refused, one by one: bounds included, and without a member."""

import math
from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from statechannel.api import BrokerHooks
from statechannel.broker import arguments
from statechannel.broker.arguments import ADVERTISED_MAX_BYTES
from statechannel.engine import commands
from statechannel.operations import checks
from statechannel.operations.checks import ArgumentTypeError, ArgumentValueError
from statechannel.operations.table import check
from statechannel.protocol.bundle import FULL_UPPER, MAX_CHILDREN
from statechannel.settings import Settings, SettingsError, load
from statechannel.settings.groups_engine import HookSettings

HUGE = 10**5_000
NO_SECONDS = [None, "5", True, 1j, math.nan, math.inf, -1, -0.001, HUGE]
SECONDS = [0, 0.0, 5, 1e300]
NO_TEXT = [None, 7, b"x"]
NO_WHOLE = [None, "4", 4.0, True]
Check = Callable[[Any], object]


def whole(low: int | None = None, high: int | None = None) -> Check:
    return lambda value: checks.whole("x", value, low, high)


def of(check: Callable[..., object], *more: object) -> Check:
    return lambda value: check("x", value, *more)


EXTENSION = SimpleNamespace(name="one", start=print, close=print, status=print)
OTHER = SimpleNamespace(name="two", start=print, close=print, status=print)
OPENING: dict[str, Any] = {
    "hooks_class": BrokerHooks,
    "broker": "b1",
    "flags": {},
    "extensions": (),
    **dict.fromkeys(
        ("settings", "hooks", "listeners", "properties", "join_timeout_s", "placement", "metrics_registry", "on_stuck")
    ),
}


def opening(name: str) -> Check:
    return lambda value: arguments.check_opening(**(OPENING | {name: value}))


def listener(url: str) -> dict[str, str]:
    return {"tcp": url}


LONGEST = ADVERTISED_MAX_BYTES - len(b'{"listeners":{},"properties":{"x":""}}')
CHECKS: dict[str, tuple[Check, list[Any], list[Any]]] = {
    "instance": (of(checks.instance, int), [None, 7], ["7"]),
    "one_of": (of(checks.one_of, int), [7], [None, "7"]),
    "text": (of(checks.text), ["", "x"], NO_TEXT),
    "bundle_key": (of(checks.bundle_key), ["a/b/0x00000000_0xffffffff"], ["a/b/t", "a/b", ""]),
    "flag": (of(checks.flag), [True, False], [None, 1, 0, "yes"]),
    "seconds": (of(checks.seconds), SECONDS, NO_SECONDS),
    "whole": (whole(), [0, -HUGE], NO_WHOLE),
    "whole from": (whole(3), [3, HUGE], [*NO_WHOLE, 2]),
    "whole between": (whole(3, 5), [3, 5], [*NO_WHOLE, 2, 6]),
    "hashes": (
        of(checks.hashes),
        [[], (1, 2), {3}, iter([4]), range(MAX_CHILDREN - 1)],
        [None, 7, "12", b"12", {1: 2}, ["x"], [1.5], [True], range(MAX_CHILDREN)],
    ),
    "texts": (
        of(checks.texts),
        [None, {}, {"a": "b"}, MappingProxyType({"a": ""})],
        [7, "a", ["a"], {"a": 7}, {7: "a"}, {"a": None}, {"a": "\ud800"}, {"\ud800": "a"}],
    ),
    "offsets": (of(checks.offsets), [None, {}, {0: 0, 1: 7}], [7, [0], {"0": 1}, {0: "1"}, {0: -1}, {-1: 0}, {0: 1.0}]),
    "function": (of(checks.function), [print, BrokerHooks], [None, 7]),
    "broker_id": (of(checks.broker_id), ["b1", "x" * 128], [*NO_TEXT, "", "b 1", "-b", "x" * 129, ".", ".."]),
    "settings": (opening("settings"), [None], [7, {}]),
    "broker": (opening("broker"), ["b1"], ["b 1", 7]),
    "hooks": (opening("hooks"), [None, BrokerHooks()], [7, {}, BrokerHooks]),
    "listeners": (
        opening("listeners"),
        [None, {}, *map(listener, ("tcp://b1", "tcp://b1:1", "tcp://[::1]:6650"))],
        [
            7,
            {"a": 7},
            *map(listener, ("", "b1", "tcp://", "//b1", "tcp://b1:0", "tcp://b1:99999", "tcp://b1:x", "tcp://[")),
            *map(listener, ("tcp://0.0.0.0:1", "tcp://[::]:1")),
        ],
    ),
    "properties": (opening("properties"), [{"x": "y" * LONGEST}], [7, {"x": 7}, {"x": "y" * (LONGEST + 1)}]),
    "flags": (opening("flags"), [{"a": True, "b": False}], [{"a": 1}, {"a": True, "b": None}]),
    "join_timeout_s": (opening("join_timeout_s"), [None, 5], NO_SECONDS[1:]),
    "placement": (opening("placement"), [None, SimpleNamespace(choose=print)], [7, SimpleNamespace(choose=7)]),
    "extensions": (
        opening("extensions"),
        [[], (), [EXTENSION, OTHER]],
        [
            None,
            {},
            [7],
            [EXTENSION, EXTENSION],
            [SimpleNamespace(**(vars(EXTENSION) | {"name": 7}))],
            *([SimpleNamespace(**(vars(EXTENSION) | {part: None}))] for part in ("start", "close", "status")),
        ],
    ),
    "metrics_registry": (opening("metrics_registry"), [None, CollectorRegistry()], [7]),
    "on_stuck": (opening("on_stuck"), [None, print], [7]),
}


@pytest.mark.parametrize("name", CHECKS)
def test_what_passes_and_what_is_refused(name: str) -> None:
    check, good, bad = CHECKS[name]
    for value in good:
        check(value)
    for value in bad:
        with pytest.raises((ArgumentTypeError, ArgumentValueError)) as refused:
            check(value)
        assert refused.value.hint
        assert refused.value.exit_code == 2
        assert len(str(refused.value)) < 500


def test_hashes_are_taken_once_from_whatever_yields_them() -> None:
    assert checks.hashes("at", iter([3, 1, 2])) == (3, 1, 2)


def test_listeners_and_properties_share_their_bound() -> None:
    half = {"x": "y" * (LONGEST // 2 + 20)}
    urls = {"x": "tcp://b1/" + "y" * (LONGEST // 2)}
    arguments.check_opening(**(OPENING | {"properties": half}))
    arguments.check_opening(**(OPENING | {"listeners": urls}))
    with pytest.raises(ArgumentValueError):
        arguments.check_opening(**(OPENING | {"listeners": urls, "properties": half}))


BUNDLE = "a/b/0x00000000_0xffffffff"
CHANGE = {
    "timeout_s": (SECONDS, NO_SECONDS),
    "operation": (["a", "A-9", "x" * 64], [*NO_TEXT, "", "a b", "x" * 65]),
    "reason": ([None, "", "why"], [7, b"why"]),
}
OF_BUNDLE = CHANGE | {"name": ([BUNDLE, ""], NO_TEXT), "if_generation": ([None, 0, 7], ["7", 7.0, True])}
COMMANDS: dict[commands.Command, dict[str, tuple[list[Any], list[Any]]]] = {
    commands.Lookup("a/b/t", 1.0): {
        "name": ([""], NO_TEXT),
        "timeout_s": (SECONDS, NO_SECONDS),
        "read_only": ([True, False], [None, 1]),
    },
    commands.AwaitOperation("op1", 1.0): {"operation": (["", "a b"], NO_TEXT), "timeout_s": (SECONDS, NO_SECONDS)},
    commands.Shutdown(1.0): {"budget_s": (SECONDS, NO_SECONDS)},
    commands.PreStop(1.0, 1.0): {"budget_s": (SECONDS, NO_SECONDS), "notice_s": (SECONDS, NO_SECONDS)},
    commands.DismissBroker("b1"): {"broker": ([""], NO_TEXT)},
    commands.ResumeRepair(): {},
    commands.UndoPreStop(): {},
    commands.Transfer(BUNDLE, "b2", "op1", 1.0): OF_BUNDLE | {"destination": ([""], NO_TEXT)},
    commands.Unload(BUNDLE, "op1", 1.0): OF_BUNDLE,
    commands.Split(BUNDLE, "op1", 1.0): OF_BUNDLE
    | {
        "at": ([(), [5], (5, 7)], [None, "5", {5: 5}, {5}, iter([5]), [1.5], [True], list(range(MAX_CHILDREN))]),
        "parts": ([0, 2, -1], NO_WHOLE),
    },
    commands.CreateNamespace("a/b", (0, FULL_UPPER), "op1", 1.0): CHANGE
    | {
        "namespace": (["", "a/b"], NO_TEXT),
        "bounds": (
            [[0, FULL_UPPER], (0, 1, FULL_UPPER), [*range(MAX_CHILDREN), FULL_UPPER]],
            [
                None, 7, "0", {0, 1}, (), (0,), (FULL_UPPER,), (1, FULL_UPPER), (0, FULL_UPPER - 1), (0, 5, 5, FULL_UPPER),
                (0, 5, 4, FULL_UPPER), (-1, FULL_UPPER), (0, FULL_UPPER + 1), (0, 1.0, FULL_UPPER), (False, FULL_UPPER),
                [*range(MAX_CHILDREN + 1), FULL_UPPER],
            ],
        ),
    },
    commands.DeleteNamespace("a/b", "op1", 1.0): CHANGE | {"namespace": (["", "a/b"], NO_TEXT)},
}  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: type(command).__name__)
def test_each_field_of_each_command_is_checked(command: commands.Command) -> None:
    check(command)
    fields = COMMANDS[command]
    assert fields.keys() | {"decision"} >= set(command.__dataclass_fields__)
    for name, (good, bad) in fields.items():
        for value in good:
            check(replace(command, **{name: value}))
        for value in bad:
            with pytest.raises((ArgumentTypeError, ArgumentValueError)) as refused:
                check(replace(command, **{name: value}))
            assert name in str(refused.value)


@pytest.mark.parametrize("command", [None, 7, "lookup", commands.Lookup])
def test_what_is_no_command_is_refused(command: Any) -> None:
    with pytest.raises(ArgumentTypeError):
        check(command)


def door(settings: object = None, broker: str = "", hook_settings: object = None, **groups: object) -> None:
    """A function with arguments beside groups of settings."""


def test_groups_of_settings_have_their_own_names() -> None:
    groups = arguments.groups_of({"kafka": {"a": 1}}, {"deadline_s": 2}, door, None)
    assert groups == {"kafka": {"a": 1}, "hooks": {"deadline_s": 2}}
    assert arguments.groups_of({}, None, door, Settings()) == {}


@pytest.mark.parametrize(
    ("named", "meant"),
    [
        ({"borker": "b1"}, "`broker`"),
        ({"kafak": {}}, "`kafka`"),
        ({"hook_setings": {}}, "`hook_settings`"),
        ({"bootstrap_servers": "x"}, "`kafka={'bootstrap_servers': ...}`"),
        ({"bootstrap_server": "x"}, "`kafka={'bootstrap_servers': ...}`"),
        ({"zzzzzzzz": 1}, ""),
    ],
)
def test_a_name_that_is_none_is_refused_with_the_one_that_was_meant(named: dict[str, Any], meant: str) -> None:
    with pytest.raises(ArgumentTypeError) as refused:
        arguments.groups_of(named, None, door, None)
    _, asked, what = str(refused.value).partition("Did you mean ")
    assert what.removesuffix("?") == meant
    assert bool(asked) == bool(meant)


@pytest.mark.parametrize(
    ("named", "hook_settings", "settings"),
    [({"kafka": 7}, None, None), ({}, 7, None), ({"kafka": {}}, None, Settings()), ({}, {}, Settings())],
)
def test_groups_are_mappings_and_not_beside_settings(named: dict[str, Any], hook_settings: Any, settings: Any) -> None:
    with pytest.raises(ArgumentTypeError):
        arguments.groups_of(named, hook_settings, door, settings)


def test_settings_are_those_that_were_given_or_made_of_groups() -> None:
    given = load()
    assert arguments.settings_of(given, {}) is given
    assert arguments.settings_of(None, {"hooks": {"deadline_s": 2}}).hooks.deadline_s == 2
    with pytest.raises(SettingsError):
        arguments.settings_of(Settings(hooks=HookSettings(deadline_s=100)), {})
