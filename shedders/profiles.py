"""Profiles: strategies with their settings, by one name.

Settings of a profile stand over the strategies' own defaults; those of a snapshot or of an option stand over the profile's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from statechannel.errors import StateChannelError

Settings = Mapping[str, Mapping[str, Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class Profile:
    """Strategies and settings.

    Attributes:
        about: What it is for.
        strategies: Name of the strategy of each kind.
        settings: By kind and strategy, where they differ from the strategy's defaults.
    """

    name: str
    about: str
    strategies: Mapping[str, str]
    settings: Settings = field(default_factory=dict)


class UnknownProfileError(StateChannelError):
    """There is no profile of that name."""

    def __init__(self, name: str) -> None:
        near = get_close_matches(name, list(PROFILES), 1)
        meant = f"did you mean {near[0]}? " if near else ""
        super().__init__(f"there is no profile `{name}`", hint=f"{meant}There are: {', '.join(PROFILES)}.", exit_code=8)


def profile(name: str) -> Profile:
    """The profile of that name.

    Raises:
        UnknownProfileError: There is none.
    """
    if name not in PROFILES:
        raise UnknownProfileError(name)
    return PROFILES[name]


DEFAULT = Profile(
    "default",
    "Ours: transfers as PIP-192 meant them, with its defects mended.",
    {"shedding": "transfer", "placement": "least_resource_usage", "split": "range_equally_divide"},
)

PROFILES: Mapping[str, Profile] = {one.name: one for one in (DEFAULT,)}
