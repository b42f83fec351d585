"""Validation of the arguments with which a member is opened."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn
from urllib.parse import urlsplit

import orjson

from statechannel.errors import ExitCode
from statechannel.operations.checks import (
    ArgumentTypeError,
    ArgumentValueError,
    broker_id,
    flag,
    instance,
    printed,
    seconds,
    text,
    texts,
    wrong_type,
    wrong_value,
)
from statechannel.settings import Settings, load, require_relations
from statechannel.settings.names import AS_ARGUMENT, as_argument
from statechannel.settings.names import known as names_by_group
from statechannel.settings.tree import groups
from statechannel.suggestions import nearest, shown

ADVERTISED_MAX_BYTES = 8 * 1024
"""Maximum size of a broker's listeners and properties together, as JSON: every heartbeat carries them."""
_NO_PLACE = ("0.0.0.0", "::")  # noqa: S104 - all interfaces of a server; a client that is sent there stays on its own machine


def _urls(name: str, mapping: object) -> None:
    """A mapping to URLs of servers; `texts` has checked the rest."""
    for key, value in mapping.items() if isinstance(mapping, Mapping) else ():
        try:
            url = urlsplit(value)
            is_url = bool(url.scheme) and url.hostname not in (None, *_NO_PLACE) and url.port != 0
        except ValueError:  # no port number, or half of an IPv6 address
            is_url = False
        if not is_url:
            wrong_value(f"{name}[{printed(key)}]", value, "a URL that clients reach, as pulsar://b1.example:6650")


def _advertised(listeners: Mapping[str, str] | None, properties: Mapping[str, str] | None) -> None:
    """Check the size of the fields that are part of every heartbeat."""
    size_bytes = len(orjson.dumps({"listeners": dict(listeners or {}), "properties": dict(properties or {})}))
    if size_bytes > ADVERTISED_MAX_BYTES:
        raise ArgumentValueError(
            f"`listeners` and `properties` take {size_bytes} bytes as JSON; wanted: at most {ADVERTISED_MAX_BYTES} bytes "
            "together, since every heartbeat of the registry carries them",
            hint="Store long values elsewhere, and reference them in a property.",
            exit_code=ExitCode.USAGE,
        )


def check_opening(
    *,
    hooks_class: type[Any],
    settings: object,
    broker: object,
    hooks: object,
    listeners: object,
    properties: object,
    flags: Mapping[str, object],
    join_timeout_s: object,
    placement: object,
    extensions: object,
    metrics_registry: object,
    on_stuck: object,
) -> None:
    """Refuse invalid arguments of `StateChannel.open`.

    Raises:
        ArgumentTypeError: An argument is of the wrong type.
        ArgumentValueError: An argument is out of bounds or malformed.
    """
    # Commands read requests with this module; they need no metrics, and their help no settings.
    from prometheus_client import CollectorRegistry  # noqa: PLC0415

    instance("settings", settings, Settings)
    broker_id("broker", broker)
    hooks_of(hooks, hooks_class)
    texts("listeners", listeners)
    _urls("listeners", listeners)
    texts("properties", properties)
    _advertised(listeners, properties)  # type: ignore[arg-type]  # `texts` saw to that
    for name, value in flags.items():
        flag(name, value)
    if join_timeout_s is not None:
        seconds("join_timeout_s", join_timeout_s)
    if placement is not None and not callable(getattr(placement, "choose", None)):
        wrong_type("placement", placement, "an object with a method `choose`, or None")
    _extensions(extensions)
    instance("metrics_registry", metrics_registry, CollectorRegistry)
    if on_stuck is not None and not callable(on_stuck):
        wrong_type("on_stuck", on_stuck, "a function without arguments, or None")


def groups_of(
    named: Mapping[str, Any], hook_settings: Mapping[str, Any] | None, function: Callable[..., object], settings: object
) -> dict[str, Mapping[str, Any]]:
    """Groups of settings that were given as arguments: where these have any name, a misspelt one becomes a group.

    Args:
        named: All but those of the hooks, which are an argument themselves.
        function: Whose arguments they were.
        settings: Given beside them, or None.

    Returns:
        The groups by their own names.
    """
    known = {AS_ARGUMENT.get(group, group): names for group, names in names_by_group(groups()).items()}
    names = [name for name, p in inspect.signature(function).parameters.items() if p.kind is not p.VAR_KEYWORD]
    by_argument = dict(named) if hook_settings is None else {**named, AS_ARGUMENT["hooks"]: hook_settings}
    for name, value in by_argument.items():
        if name not in known:
            meant = _meant(name, [*names, *known], known)
            raise ArgumentTypeError(
                f"`{shown(name)}` is neither an argument nor a group of settings.{f' Did you mean `{meant}`?' if meant else ''}",
                hint=f"Arguments: {', '.join(names)}. Groups, each a mapping: {', '.join(known)}.",
                exit_code=ExitCode.USAGE,
            )
        if not isinstance(value, Mapping):
            wrong_type(name, value, f"a mapping of its settings, such as {{'{known[name][0]}': ...}}")
        if settings is not None:
            raise ArgumentTypeError(
                f"`{name}` is given beside `settings`, which hold all groups.",
                hint="Give either; `statechannel.api.load_settings` makes settings of groups.",
                exit_code=ExitCode.USAGE,
            )
    own = {argument: group for group, argument in AS_ARGUMENT.items()}
    return {own.get(name, name): value for name, value in by_argument.items()}


def settings_of(settings: Settings | None, by_group: Mapping[str, Mapping[str, Any]]) -> Settings:
    """The settings of a caller, or those of the environment and of groups.

    Raises:
        SettingsError: One is wrong, or two contradict each other.
    """
    if settings is None:
        return load(overrides=by_group, options_origin="an argument", by_opening=True)
    require_relations(settings)
    return settings


def _meant(name: str, first: Iterable[str], known: Mapping[str, Iterable[str]]) -> str:
    """The name, or the setting in its group, that was meant; empty if none is near."""
    near = nearest(name, first)
    exact = {setting: group for group, settings in known.items() for setting in settings}
    setting = name if name in exact else next(iter(nearest(name, exact, cutoff=0.8)), "")
    if setting in exact and (name in exact or not near):
        return f"{exact[setting]}={{'{setting}': ...}}"
    return near[0] if near else ""


def hooks_of(value: object, wanted: type[Any]) -> None:
    """The hooks of a broker: an instance of a class, whose methods fit the class.

    Args:
        wanted: `BrokerHooks` or `BlockingBrokerHooks`, which says whether its hooks are coroutines.
    """
    if isinstance(value, Mapping):
        raise ArgumentTypeError(
            f"`hooks` is {printed(value)} of type {type(value).__name__}; wanted: an instance of {wanted.__name__}, or None",
            hint=f"Settings of the hooks are another argument: `{as_argument('hooks', 'deadline_s')}`.",
            exit_code=ExitCode.USAGE,
        )
    instance("hooks", value, wanted)
    if value is None:
        return
    names = [name for name in vars(wanted) if name.startswith(_HOOK)]
    strange: dict[str, str | None] = {}
    for name in dir(type(value)):
        if name in names or name.startswith("__") or not callable(getattr(type(value), name)):
            continue
        meant = _hook_meant(value, name, wanted, names)
        if name.startswith(_HOOK) or meant is not None:
            strange[name] = meant
    if strange:
        like = " or ".join(f"`{meant}`" for meant in dict.fromkeys(strange.values()) if meant is not None)
        what = "is not a hook" if len(strange) == 1 else "are not hooks"
        listed = f"{', '.join(names)}; other methods need another name.{f' Did you mean {like}?' if like else ''}"
        _wrong_hook(value, "`, `".join(strange), what, listed)
    for name in names:
        _hook(value, name, getattr(wanted, name))


_HOOK = "on_"


def _hook_meant(hooks: object, name: str, wanted: type[Any], names: list[str]) -> str | None:
    """The hook that a method is meant to be: by its name, or without `on_` by the hook's own arguments."""
    if name.startswith(_HOOK):
        return next(iter(nearest(name, names)), None)
    plain = name.replace("_", "").lower()
    for hook in names:
        if plain == hook.replace("_", ""):
            return hook
        if f"{_HOOK}{name}" == hook and getattr(type(hooks), hook) is getattr(wanted, hook):
            try:
                same = list(inspect.signature(getattr(type(hooks), name)).parameters)
            except (TypeError, ValueError):  # some callables have none
                return None
            return hook if same == list(inspect.signature(getattr(wanted, hook)).parameters) else None
    return None


def _hook(hooks: object, name: str, wanted: Callable[..., object]) -> None:
    method = getattr(hooks, name)
    parameters = list(inspect.signature(wanted).parameters)[1:]
    coroutine = inspect.iscoroutinefunction(wanted)
    form = f"`{'async def' if coroutine else 'def'} {name}({', '.join(['self', *parameters])})`"
    if not callable(method):
        _wrong_hook(hooks, name, f"is {printed(method)}", form)
    # A coroutine function may wrap a plain one, and the reverse: what is called decides, and for coroutines what it wraps.
    called = (method, type(method).__call__, *((inspect.unwrap(method),) if coroutine else ()))
    if any(map(inspect.iscoroutinefunction, called)) is not coroutine:
        what = "is not a coroutine function" if coroutine else "is a coroutine function, and these hooks run in threads"
        _wrong_hook(hooks, name, what, form)
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):  # some callables have none
        return
    try:
        signature.bind(*parameters)
    except TypeError as error:
        _wrong_hook(hooks, name, f"does not take its {len(parameters)} arguments ({error})", form)


def _wrong_hook(hooks: object, name: str, what: str, wanted: str) -> NoReturn:
    text = f"`{name}` of {type(hooks).__name__} {what}; wanted: {wanted}"
    raise ArgumentTypeError(
        text, hint="Correct the class of the hooks; the channel was not changed.", exit_code=ExitCode.USAGE
    )


def _extensions(value: object) -> None:
    if not isinstance(value, list | tuple):
        wrong_type("extensions", value, "a list of extensions")
    names = set()
    for index, extension in enumerate(value):
        if not all(callable(getattr(extension, part, None)) for part in ("start", "close", "status")):
            wrong_type(
                f"extensions[{index}]", extension, "an object with `name`, `placement`, `start`, `close` and `status`"
            )
        text(f"extensions[{index}].name", getattr(extension, "name", None))
        if extension.name in names:
            wrong_value(f"extensions[{index}].name", extension.name, "each extension once")
        names.add(extension.name)
