"""Settings of load that is made up (`loaddata.simulated`): the same on all brokers, so that they agree on a bundle's load."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Self

from pydantic import model_validator

from loaddata.simulated import HotSpot, LoadProfile, SimulatedHost, SimulatedSource
from statechannel.settings.field import Group, setting

_USUAL = LoadProfile()


class SimulatedSettings(Group):
    """Load that is made up, where `source` is `simulated`: the same on all brokers, so that a bundle's load moves with it."""

    topics: int = setting(
        _USUAL.topics, "Topics of each namespace: some for each of a few dozen bundles.", ge=1, le=100_000
    )
    msg_rate: float = setting(
        _USUAL.msg_rate, "Messages a second that the lightest topics receive.", ge=0, le=1_000_000
    )
    heavy: float = setting(
        _USUAL.heavy,
        "The heaviest topics have about so many times as much: a few heavy ones, as in practice.",
        ge=1,
        le=1e6,
    )
    wave: float = setting(_USUAL.wave, "Height of the wave that all topics follow, in parts of their rate.", ge=0, le=1)
    noise: float = setting(_USUAL.noise, "Height of the noise, likewise.", ge=0, le=1)
    msg_rate_max: float = setting(
        100_000.0,
        "Messages a second, received and sent together, at which the machine of a broker is full: with the default topics three "
        "brokers are at 40 %.",
        gt=0,
        le=1e9,
    )
    hot_namespace: str | None = setting(None, "Namespace that heats up: a launch, a campaign. None: none does.")
    hot_factor: float = setting(3.0, "The load of its topics is multiplied by this.", ge=0, le=1_000)
    hot_from_s: float = setting(
        0.0, "From this time on, by the log's clock, in seconds since 1970, so that all brokers do it at once.", ge=0
    )

    @model_validator(mode="after")
    def _has_load(self) -> Self:
        if self.hot_namespace is None and self.hot_from_s:
            raise ValueError("hot_from_s says when a namespace heats up: name it (hot_namespace)")
        return self

    def source(
        self, seed: int, serving: Callable[[], Iterable[str]], now_s: Callable[[], float]
    ) -> tuple[SimulatedSource, SimulatedHost]:
        """What makes up the load of bundles, and of the machine that serves them.

        Args:
            serving: Bundles that the broker serves.
            now_s: A clock that all brokers share, in seconds since 1970.
        """
        found = SimulatedSource(seed, serving, now_s, self.profile(), hot=self.hot_spot())
        return found, SimulatedHost(found, msg_rate_max=self.msg_rate_max)

    def profile(self) -> LoadProfile:
        """What topics there are."""
        return LoadProfile(
            topics=self.topics, msg_rate=self.msg_rate, heavy=self.heavy, wave=self.wave, noise=self.noise
        )

    def hot_spot(self) -> HotSpot | None:
        """What heats up; None: nothing does."""
        if self.hot_namespace is None:
            return None
        return HotSpot(self.hot_namespace, self.hot_factor, self.hot_from_s)
