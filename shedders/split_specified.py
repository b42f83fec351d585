"""`specified-positions-divide`: where an operator says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field

from shedders.cluster import Bundle
from shedders.cuts import CannotSplitError, ends, inside
from shedders.strategy import StrategySettings
from statechannel.core.bundle import FULL_UPPER


def _hash(value: object) -> object:
    """A hash as people write it: `0x...`, or a decimal number."""
    if isinstance(value, str):
        return int(value, 16) if value.strip().lower().startswith("0x") else int(value)
    return value


Position = Annotated[int, BeforeValidator(_hash), Field(ge=0, le=FULL_UPPER, strict=True)]


class SplitSpecifiedSettings(StrategySettings):
    """What `specified-positions-divide` can be told."""

    upstream: bool = Field(
        default=False, description="Keep a hash that is named twice, as Pulsar does, although such a cut is refused."
    )
    positions: tuple[Position, ...] = Field(
        default=(), description="Hashes to cut at, 0x... or decimal; `statechannel positions` shows what lies where."
    )
    forced: bool = Field(default=False, description="Cut bundles with fewer than two topics, too.")


class SplitSpecified:
    """Cuts at the given hashes that lie strictly inside the bundle, ascending, each once.

    A bundle with fewer than two topics is left whole, unless `forced`. Without any position it refuses (upstream throws).

    Worked example: positions 0x60, 0x20, 0x60, 0x80 on 0x00_0x80 with two topics: cuts at 0x20 and 0x60 (upstream: 0x20, 0x60,
    0x60, which is refused later).

    Source: upstream `SpecifiedPositionsBundleSplitAlgorithm`.
    """

    name: ClassVar[str] = "specified-positions-divide"
    Settings: ClassVar[type[StrategySettings]] = SplitSpecifiedSettings

    def __init__(self, settings: SplitSpecifiedSettings) -> None:
        self.settings = settings

    def positions(self, bundle: Bundle) -> Sequence[int]:
        """Where to cut; empty where none of the positions is inside, or it has too few topics.

        Raises:
            CannotSplitError: No position was given, or the bundle's name is none.
        """
        wanted = self.settings.positions
        if not wanted:
            raise CannotSplitError(
                bundle.name, f"{self.name} was given no positions", hint="Set `positions`, or choose another algorithm."
            )
        lower, upper = ends(bundle)
        known = max(len(bundle.topics), 0 if bundle.stats is None else bundle.stats.topics)
        if known <= 1 and not self.settings.forced:
            return []
        if self.settings.upstream:
            return sorted(position for position in wanted if lower < position < upper)
        return inside(wanted, lower, upper)
