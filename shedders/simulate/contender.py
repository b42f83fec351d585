"""Who takes part in the contest: a manager with its strategies and their settings, by one name.

    MANAGER/SHEDDING+PLACEMENT@SETTINGS     extensible/transfer+least-resource-usage@upstream

Managers: `modular` (the leader places and knows every bundle; bundles are unloaded and placed anew), `extensible` (every broker
places; the leader knows each broker's heaviest bundles, and transfers). Settings: `upstream` (Pulsar 4.2.4, defects included),
`recommended` (mended, defaults of this project), or both followed by `,NAME=VALUE` overrides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

AS_IT_IS: Final = "as-it-is"
"""Name of what a cluster of one's own does already."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One manager with strategies.

    Attributes:
        name: As results have it.
        about: One line, for people.
        manager: `modular` or `extensible`.
        upstream: Pulsar's behaviour in everything: strategies, filters, splits, placements that count nothing on its way.
        overrides: Settings by dotted name, as policies have them: `shedding.transfer.hit_threshold`, `balancer.interval_s`.
    """

    name: str
    about: str
    manager: str
    shedding: str
    placement: str
    split: str = "range-equally-divide"
    upstream: bool = False
    overrides: Mapping[str, Any] = field(default_factory=dict)
