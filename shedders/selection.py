"""Which strategy a snapshot or a command means, and with which settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from shedders.profiles import profile as profile_of
from shedders.registry import find, parse_flags, settings_of
from shedders.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Selected:
    """A strategy, made.

    Attributes:
        settings: Every setting as it is used.
        strategy: What was made: a `Shedding`, `Placing` or `SplitAlgorithm`.
    """

    kind: str
    name: str
    profile: str
    settings: Mapping[str, Any]
    strategy: Any


def select(
    snapshot: Snapshot, kind: str, *, name: str | None = None, profile: str | None = None, flags: Sequence[str] = ()
) -> Selected:
    """Make a strategy.

    The name is the one given, else the snapshot's, else the profile's. Settings, weakest first: the strategy's defaults, the
    profile's, the snapshot's, the flags. A profile that is named here takes the place of the snapshot's profile *and* settings.

    Args:
        kind: `shedding`, `placement` or `split`.
        flags: Settings as `name=value`.

    Raises:
        UnknownProfileError: There is no such profile.
        UnknownStrategyError: There is no such strategy.
        StrategyFailedError: It cannot be used.
        StrategySettingsError: It does not take these settings.
    """
    chosen = profile_of(profile or snapshot.profile)
    wanted = name or (None if profile else getattr(snapshot.strategies, kind)) or chosen.strategies[kind]
    found = find(kind, wanted)
    values = values_of(snapshot, kind, wanted, profile=profile)
    settings = settings_of(found.Settings, f"{kind}.{wanted}", {**values, **parse_flags(flags)})
    return Selected(kind, wanted, chosen.name, dumped(settings), found(settings))


def values_of(snapshot: Snapshot, kind: str, name: str, *, profile: str | None = None) -> dict[str, Any]:
    """Settings that differ from the defaults, as the profile and the snapshot have them."""
    chosen = profile_of(profile or snapshot.profile)
    own = {} if profile else getattr(snapshot.settings, kind).get(name, {})
    return {**chosen.settings.get(kind, {}).get(name, {}), **own}


def dumped(settings: BaseModel) -> dict[str, Any]:
    """Settings as JSON has them."""
    return settings.model_dump(mode="json")
