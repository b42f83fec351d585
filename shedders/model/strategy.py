"""Ports of strategies, their discovery by entry points, and their creation from names and settings.

    [project.entry-points."shedders.shedding"]
    mine = "my_package:MyShedder"

A strategy is created with its settings model and is pure: the same cluster, settings and memory give the same result, whatever
the order of dictionaries or the hash seed. It returns state for its next call as `memory`.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from itertools import islice
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, cast, runtime_checkable

from pydantic import BaseModel, ConfigDict, ValidationError

from shedders.errors import StrategyFailedError, UnknownStrategyError
from shedders.model.cluster import Bundle, Cluster
from shedders.model.plan import Placed, Plan
from statechannel.errors import ExitCode, StateChannelError
from statechannel.files import parse_value
from statechannel.suggestions import nearest, shown

SHEDDING, PLACEMENT, SPLIT = "shedders.shedding", "shedders.placement", "shedders.split"

Strategy = TypeVar("Strategy")


class StrategySettings(BaseModel):
    """Base of every strategy's settings: validated, unknown names refused, never changed.

    Attributes:
        gone: Settings of former versions, each with what replaces it: the error that refuses them says so.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    gone: ClassVar[Mapping[str, str]] = {}


@runtime_checkable
class Shedding(Protocol):
    """Chooses bundles to move."""

    name: ClassVar[str]
    Settings: ClassVar[type[StrategySettings]]

    def plan(self, cluster: Cluster, memory: Mapping[str, Any]) -> Plan:
        """Decide once.

        Args:
            memory: `Plan.memory` of the last decision; empty at first.
        """
        ...


@runtime_checkable
class Placing(Protocol):
    """Chooses a broker for a bundle among candidates that the filters left."""

    name: ClassVar[str]
    Settings: ClassVar[type[StrategySettings]]

    def place(
        self,
        cluster: Cluster,
        bundle: Bundle,
        candidates: Sequence[str],
        booked: Mapping[str, Sequence[str]],
        memory: Mapping[str, Any],
    ) -> Placed:
        """Choose.

        Args:
            candidates: Sorted.
            booked: Bundles in flight to a broker that its report does not count yet.
            memory: `Placed.memory` of the last choice; empty at first.
        """
        ...


@runtime_checkable
class SplitAlgorithm(Protocol):
    """Chooses where a bundle is cut."""

    name: ClassVar[str]
    Settings: ClassVar[type[StrategySettings]]

    def positions(self, bundle: Bundle) -> Sequence[int]:
        """Hashes at which to cut, strictly inside the bundle, ascending, each once; empty where there is nothing to split."""
        ...


def available(kind: str) -> Mapping[str, EntryPoint]:
    return {point.name: point for point in sorted(entry_points(group=kind), key=lambda point: point.name)}


def load(kind: str, name: str, port: type[Strategy]) -> type[Strategy]:
    """The class of a strategy.

    Raises:
        UnknownStrategyError: No strategy has that name; the error lists those that exist.
        StrategyFailedError: It cannot be imported, or is not a strategy.
    """
    points = available(kind)
    if name not in points:
        raise UnknownStrategyError(kind, name, list(points))
    try:
        strategy = points[name].load()
    except Exception as error:
        raise StrategyFailedError(kind, name, f"cannot be imported: {error!r}") from error
    missing = [part for part in _parts(port) if not hasattr(strategy, part)]
    if not isinstance(strategy, type) or missing:
        raise StrategyFailedError(kind, name, f"lacks {', '.join(missing) or 'a class'}")
    return strategy


def _parts(port: type[Any]) -> list[str]:
    return sorted(part for part in {*vars(port), *vars(port).get("__annotations__", {})} if not part.startswith("_"))


Settings = TypeVar("Settings", bound=StrategySettings)
PROBLEMS_MAX = 20  # number of wrong settings that an error lists; the others are counted
CanTake = Callable[[Bundle, str], str | None]
"""Filters as shedding strategies see them: why a broker may not take a bundle; None if it may."""

SheddingMaker = Callable[[CanTake | None], Shedding]
"""Creates a shedding strategy for one decision, with the filters of its cluster."""


class StrategyKind(NamedTuple):
    """One kind of strategy: its entry point group, and its port."""

    group: str
    port: type[Any]


KINDS: Mapping[str, StrategyKind] = {
    "shedding": StrategyKind(SHEDDING, Shedding),
    "placement": StrategyKind(PLACEMENT, Placing),
    "split": StrategyKind(SPLIT, SplitAlgorithm),
}


class StrategySettingsError(StateChannelError):
    """A setting of a strategy is unknown, malformed or out of bounds."""

    def __init__(self, owner: str, problems: Sequence[str], known: Sequence[str]) -> None:
        text = problems[0] if len(problems) == 1 else "settings refused:\n  " + "\n  ".join(problems)
        hint = f"Settings of {owner}: {', '.join(known)}." if known else f"{owner} has no settings."
        super().__init__(text, hint=hint[:1].upper() + hint[1:], exit_code=ExitCode.BAD_SETTINGS)
        self.problems = problems


def make(kind: str, name: str, values: Mapping[str, Any] | None = None) -> Any:
    """A strategy of a kind (`shedding`, `placement`, `split`) with these settings; a shedding strategy without filters.

    Raises:
        UnknownStrategyError: No strategy has that name.
        StrategyFailedError: It cannot be used.
        StrategySettingsError: It does not accept these settings.
    """
    strategy = find(kind, name)
    return instantiate(kind, strategy, settings_of(strategy.Settings, f"{kind}.{name}", values or {}))


def instantiate(kind: str, strategy: type[Any], settings: StrategySettings, **extra: Any) -> Any:
    """A strategy of a class.

    Raises:
        StrategyFailedError: Its constructor raises.
    """
    try:
        return strategy(settings, **extra)
    except Exception as error:
        raise StrategyFailedError(kind, strategy.name, f"cannot be created: {error!r}") from error


def shedding_maker(strategy: type[Any], settings: StrategySettings) -> SheddingMaker:
    """A maker of shedding strategies of a class; it passes filters if the constructor has `can_take`."""
    filtered = "can_take" in inspect.signature(strategy).parameters

    def maker(can_take: CanTake | None) -> Shedding:
        extra = {"can_take": can_take} if filtered else {}
        return cast("Shedding", instantiate("shedding", strategy, settings, **extra))

    return maker


def find(kind: str, name: str) -> type[Any]:
    """The class of a strategy; raises as `make`."""
    strategy_kind = KINDS[kind]
    return load(strategy_kind.group, name, strategy_kind.port)


def settings_of(model: type[Settings], owner: str, values: Mapping[str, Any]) -> Settings:
    """Settings from values as a file or the command line has them.

    Args:
        owner: Owner of the settings, for messages: `shedding.threshold`.
        values: Texts are converted to the field's type, as options give them.

    Raises:
        StrategySettingsError: Names every setting that is wrong.
    """
    try:
        # By way of JSON, so that lists are taken for tuples and sets.
        return model.model_validate_json(json.dumps(dict(values)))
    except ValidationError as error:
        known = list(model.model_fields)
        details = islice(error.errors(include_url=False), PROBLEMS_MAX)
        problems = [_problem(owner, detail, model) for detail in details]
        if error.error_count() > PROBLEMS_MAX:
            problems.append(f"{error.error_count() - PROBLEMS_MAX} more")
        raise StrategySettingsError(owner, problems, known) from error


def _problem(owner: str, detail: Any, model: type[StrategySettings]) -> str:
    name = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        if name in model.gone:
            return f"{owner} has no setting `{name}` any more: {model.gone[name]}"
        near = nearest(name, list(model.model_fields))
        return f"{owner} has no setting `{shown(name)}`{f'; did you mean `{near[0]}`?' if near else ''}"
    message = shown(detail["msg"][:1].lower() + detail["msg"][1:])
    return f"{owner}.{shown(name)}: {message}, found {shown(repr(detail['input']))}" if name else f"{owner}: {message}"


def parse_flags(flags: Sequence[str]) -> dict[str, Any]:
    """Settings from `name=value` texts; lists and mappings are JSON, `none` is None.

    Raises:
        StrategySettingsError: A text is not of that form.
    """
    settings: dict[str, Any] = {}
    for flag in flags:
        name, equals, value = flag.partition("=")
        if not equals or not name.strip():
            raise StrategySettingsError("the strategy", [f"--set {flag}: not of the form name=value"], [])
        settings[name.strip()] = parse_value(value.strip())
    return settings
