"""Checks of one argument each: an invalid argument of a caller, or of a request, must not end the member."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, NoReturn

from statechannel.errors import ExitCode, StateChannelError
from statechannel.protocol.bundle import FULL_UPPER, MAX_CHILDREN, is_bundle, is_namespace
from statechannel.protocol.codec import ID, is_new_broker_id

_HINT = "Correct the call; the channel was not changed."
_NUMBER = "a number of seconds, 0 or more"


class ArgumentTypeError(StateChannelError, TypeError):
    """An argument is of the wrong type."""


class ArgumentValueError(StateChannelError, ValueError):
    """An argument is of the right type, but out of its bounds or of the wrong form."""


def wrong_type(name: str, value: object, wanted: str) -> NoReturn:
    """Refuse an argument for its type.

    Raises:
        ArgumentTypeError: Always.
    """
    text = f"`{name}` is {printed(value)} of type {type(value).__name__}; wanted: {wanted}"
    raise ArgumentTypeError(text, hint=_HINT, exit_code=ExitCode.USAGE)


def wrong_value(name: str, value: object, wanted: str) -> NoReturn:
    """Refuse an argument for its value.

    Raises:
        ArgumentValueError: Always.
    """
    raise ArgumentValueError(f"`{name}` is {printed(value)}; wanted: {wanted}", hint=_HINT, exit_code=ExitCode.USAGE)


def printed(value: object) -> str:
    try:
        return reprlib.repr(value)
    except Exception:  # numbers of thousands of digits, and whatever a caller's class may do
        return "an unprintable value"


def instance(name: str, value: object, wanted: type[Any]) -> None:
    if value is not None and not isinstance(value, wanted):
        wrong_type(name, value, f"an instance of {wanted.__name__}, or None")


def one_of(name: str, value: object, wanted: type[Any]) -> None:
    if not isinstance(value, wanted):
        wrong_type(name, value, f"an instance of {wanted.__name__}")


def text(name: str, value: object) -> None:
    """Text; the engine checks whether the name exists."""
    if not isinstance(value, str):
        wrong_type(name, value, "text")


def optional(check: Callable[[str, Any], None]) -> Callable[[str, Any], None]:
    def refuse(name: str, value: Any) -> None:
        if value is not None:
            check(name, value)

    return refuse


def require_text(name: str, value: object) -> None:
    """An argument of a request that must not be left out, or empty."""
    if not isinstance(value, str) or not value:
        raise ArgumentValueError(f"`{name}` is missing or not text")


def require_namespace(name: str, value: object) -> None:
    """The same of a namespace's name."""
    require_text(name, value)
    if not is_namespace(str(value)):
        raise ArgumentValueError(f"{value!r} is not of the form tenant/namespace")


def bundle_key(name: str, value: str) -> None:
    """The key of a bundle: a topic, say, would be refused for ever where a bundle is asked about."""
    if not is_bundle(value):
        wrong_value(name, value, "the key of a bundle, such as `Owned.bundle`: tenant/namespace/0x........_0x........")


def flag(name: str, value: object) -> None:
    """True or False, not just a truthy value."""
    if not isinstance(value, bool):
        wrong_type(name, value, "True or False")


def seconds(name: str, value: object) -> None:
    """A finite time: NaN and infinity would wait for ever."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        wrong_type(name, value, _NUMBER)
    try:
        fits = 0 <= float(value) < math.inf
    except OverflowError:
        fits = False
    if not fits:
        wrong_value(name, value, _NUMBER)


def whole(name: str, value: object, low: int | None = None, high: int | None = None) -> None:
    """A whole number, optionally within bounds."""
    if isinstance(value, bool) or not isinstance(value, int):
        wrong_type(name, value, "a whole number")
    if low is not None and (value < low or (high is not None and value > high)):
        wrong_value(name, value, f"{low} or more" if high is None else f"{low} to {high}")


def hashes(name: str, value: object) -> tuple[int, ...]:
    """Positions on the ring, fewer than a bundle may have children; the engine checks whether they are inside the bundle."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        wrong_type(name, value, "a list of hashes, whole numbers")
    positions = tuple(islice(value, MAX_CHILDREN))
    if len(positions) >= MAX_CHILDREN:
        wrong_value(name, value, f"at most {MAX_CHILDREN - 1} hashes")
    for index, position in enumerate(positions):
        whole(f"{name}[{index}]", position)
    return positions


def cuts(name: str, value: object) -> None:
    """Positions of a command: a list that can be read once only is none."""
    if not isinstance(value, tuple | list):
        wrong_type(name, value, "a tuple of hashes, whole numbers")
    hashes(name, value)


def texts(name: str, mapping: object) -> None:
    if mapping is None:
        return
    if not isinstance(mapping, Mapping):
        wrong_type(name, mapping, "a mapping of text to text")
    for key, value in mapping.items():
        for part in (key, value):
            if not isinstance(part, str):
                wrong_type(f"{name}[{printed(key)}]", value, "text as name and as value")
            if not _is_unicode(part):
                wrong_value(f"{name}[{printed(key)}]", value, "text without lone surrogates")


def offsets(name: str, value: object) -> None:
    """A mapping of partitions to offsets; None is none."""
    if value is None:
        return
    if not isinstance(value, Mapping):
        wrong_type(name, value, "a mapping of partitions to offsets")
    for partition, offset in value.items():
        whole(f"{name}[{printed(partition)}]", partition, 0)
        whole(f"{name}[{printed(partition)}]", offset, 0)


def function(name: str, value: object) -> None:
    if not callable(value):
        wrong_type(name, value, "a function")


def broker_id(name: str, value: object) -> None:
    text(name, value)
    if not is_new_broker_id(value):
        wrong_value(name, value, "1 to 128 of A-Za-z0-9_.:-, the first of them not -, and not . or .. alone")


def _is_unicode(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def bounds(name: str, value: object) -> None:
    """Bounds of a whole ring: the engine creates bundles from them unchanged."""
    if not isinstance(value, tuple | list):
        wrong_type(name, value, "a tuple of hashes")
    if len(value) > MAX_CHILDREN + 1:
        wrong_value(name, value, f"at most {MAX_CHILDREN + 1} bounds")
    before = -1
    for index, bound in enumerate(value):
        whole(f"{name}[{index}]", bound)
        if bound <= before:
            wrong_value(f"{name}[{index}]", bound, f"ascending bounds, each once: more than {before}")
        before = bound
    if not value or value[0] != 0 or value[-1] != FULL_UPPER:
        wrong_value(name, value, f"bounds from 0 to {FULL_UPPER}, the whole ring")


def operation(name: str, value: object) -> None:
    text(name, value)
    if ID(str(value)) is None:
        wrong_value(name, value, "1 to 64 of A-Za-z0-9-")
