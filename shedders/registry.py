"""Makes strategies from names and settings, and says what was meant where one of them is wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple, TypeVar, cast

import orjson
from pydantic import ValidationError

from shedders import strategy as ports
from shedders.strategy import Placing, Shedding, SplitAlgorithm, StrategySettings
from statechannel.errors import StateChannelError

BAD_SETTINGS = 8
"""Exit code: the same as for other settings (`statechannel.cli.exit_codes`)."""

Made = TypeVar("Made", bound=StrategySettings)


class Kind(NamedTuple):
    """One kind of strategy: its word in files and options, its entry point group, its port."""

    word: str
    group: str
    port: type[Any]


KINDS: Mapping[str, Kind] = {
    "shedding": Kind("shedding", ports.SHEDDING, Shedding),
    "placement": Kind("placement", ports.PLACEMENT, Placing),
    "split": Kind("split", ports.SPLIT, SplitAlgorithm),
}


class StrategySettingsError(StateChannelError):
    """A setting of a strategy is unknown, malformed or out of bounds.

    Attributes:
        problems: One sentence for each thing that is wrong.
    """

    def __init__(self, owner: str, problems: Sequence[str], known: Sequence[str]) -> None:
        text = problems[0] if len(problems) == 1 else "settings refused:\n  " + "\n  ".join(problems)
        hint = f"Settings of {owner}: {', '.join(known)}." if known else f"{owner} has no settings."
        super().__init__(text, hint=hint[:1].upper() + hint[1:], exit_code=BAD_SETTINGS)
        self.problems = problems


def make_shedding(name: str, values: Mapping[str, Any] | None = None) -> Shedding:
    """A shedding strategy with these settings.

    Raises:
        UnknownStrategyError: There is none of that name.
        StrategyFailedError: It cannot be used.
        StrategySettingsError: It does not take these settings.
    """
    return cast("Shedding", make("shedding", name, values))


def make_placing(name: str, values: Mapping[str, Any] | None = None) -> Placing:
    """A placement strategy with these settings; raises as `make_shedding`."""
    return cast("Placing", make("placement", name, values))


def make_split(name: str, values: Mapping[str, Any] | None = None) -> SplitAlgorithm:
    """A split algorithm with these settings; raises as `make_shedding`."""
    return cast("SplitAlgorithm", make("split", name, values))


def make(kind: str, name: str, values: Mapping[str, Any] | None = None) -> Any:
    """A strategy of a kind (`shedding`, `placement`, `split`); raises as `make_shedding`."""
    found = find(kind, name)
    return found(settings_of(found.Settings, f"{kind}.{name}", values or {}))


def find(kind: str, name: str) -> type[Any]:
    """The class of a strategy; raises as `make_shedding`."""
    one = KINDS[kind]
    return ports.load(one.group, name, one.port)


def settings_of(model: type[Made], owner: str, values: Mapping[str, Any]) -> Made:
    """Settings from values as a file or the command line has them.

    Args:
        owner: Whose settings these are, for people: `shedding.threshold`.
        values: Texts are read as the field's type, as options give them.

    Raises:
        StrategySettingsError: Names every setting that is wrong.
    """
    try:
        # By way of JSON, so that lists are taken for tuples and sets.
        return model.model_validate_json(json.dumps(dict(values)))
    except ValidationError as error:
        known = list(model.model_fields)
        problems = [_problem(owner, detail, known) for detail in error.errors(include_url=False)]
        raise StrategySettingsError(owner, problems, known) from error


def _problem(owner: str, detail: Any, known: Sequence[str]) -> str:
    name = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        near = get_close_matches(name, known, 1)
        return f"{owner} has no setting `{name}`{f'; did you mean `{near[0]}`?' if near else ''}"
    message = detail["msg"][:1].lower() + detail["msg"][1:]
    return f"{owner}.{name}: {message}, found {detail['input']!r}" if name else f"{owner}: {message}"


def parse_flags(flags: Sequence[str]) -> dict[str, Any]:
    """Settings from `name=value` texts; lists and mappings are JSON, `none` is None.

    Raises:
        StrategySettingsError: A text is not of that form.
    """
    found: dict[str, Any] = {}
    for flag in flags:
        name, equals, value = flag.partition("=")
        if not equals or not name.strip():
            raise StrategySettingsError("the strategy", [f"--set {flag}: not of the form name=value"], [])
        found[name.strip()] = _value(value.strip())
    return found


def _value(text: str) -> Any:
    if text.lower() == "none":
        return None
    if text[:1] in ("[", "{"):
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError:
            return text
    return text
