"""Memory of `weighted-move` between two decisions: readings and debts of brokers, moves, split wishes, evidence. Pure.

Times are seconds of a clock of its own (`Memory.clock_s`), which counts what passes between decisions, at most `RECENT_S` each.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import nlargest
from math import inf
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from shedders.model.cluster import Bundle, Cluster
from shedders.weighted_move.direct_memory import MemoryEvidence
from shedders.weighted_move.evidence import RECENT_S, TRACKED, Amount, Evidence
from shedders.weighted_move.loads import Use, price
from statechannel.protocol.bundle import parse_key

FIRST_S = 60.0  # the first decision counts as one of this time after another
SMOOTHED = 3  # a broker's use is the mean of up to this many of its last readings
PLACED = 0.1  # if more than this part of a broker's bundles, and more than one, came or went, its load is a new one
NOISE = 0.03  # prior for the noise of a broker, in parts of its level
NOISE_SHARE = 1 / 20  # weight of a new reading in the noise
SAFETY = 5.0  # noise alone makes a debt of the price with a probability of about e^(-2 * this) at the most
FORMER_MAX = 12  # former brokers of each


class BrokerHistory(NamedTuple):
    """The readings of one broker, and its debts.

    Attributes:
        readings: Since bundles came or went, at most `SMOOTHED`; `use`: their mean.
        last: Its most used resource at the last reading, in parts of its limit.
        noise: Mean difference between two readings, in parts of the level.
        bundles: Number of its bundles at the last reading.
        over, under: What its gap above and below perfect balance has cost, in minutes of level.
    """

    readings: Annotated[int, Field(ge=0, le=SMOOTHED)] = 0
    use: tuple[Amount, Amount, Amount, Amount] = (0.0, 0.0, 0.0, 0.0)
    last: Amount = 0.0
    noise: Amount = NOISE
    bundles: Annotated[int, Field(ge=0)] = 0
    over: Amount = 0.0
    under: Amount = 0.0

    def read(self, use: Use, usage: float, bundles: int, *, moved: bool) -> BrokerHistory:
        """The history with one more reading; the mean and the debts start over when bundles came or went."""
        if not self.readings or moved or abs(bundles - self.bundles) > max(1, self.bundles * PLACED):
            return BrokerHistory(1, use, usage, self.noise, bundles)
        count, noise = min(self.readings + 1, SMOOTHED), self.noise
        if usage != self.last:  # the same once more is the same report
            change = abs(usage - self.last) / max(usage, self.last)
            noise += (min(change, 4 * noise + 0.01) - noise) * NOISE_SHARE
        cpu, inwards, outwards, cached = (old + (new - old) / count for old, new in zip(self.use, use, strict=True))
        return BrokerHistory(count, (cpu, inwards, outwards, cached), usage, noise, bundles, self.over, self.under)

    def tolerance(self, gap: float, paid: float) -> float:
        """The part of a gap that makes no debt: the gap that is accepted, and what is within the noise.

        Args:
            paid: The price of acting.
        """
        return gap + SAFETY * self.noise * self.noise / max(paid, 0.1)

    def owing(self, level: float, tolerance: float, minutes: float) -> BrokerHistory:
        """The history with the debts of some more minutes at this level."""
        gap = price(level)
        over, under = self.over + (gap - tolerance) * minutes, self.under + (-gap - tolerance) * minutes
        return self._replace(over=max(0.0, over), under=max(0.0, under))


class Memory(BaseModel):
    """The whole memory.

    Attributes:
        at_ms: When the last decision was made.
        clock_s: Seconds of its own clock then.
        brokers: Readings and debts.
        left: By moved bundle its former brokers, with the time at which it was moved, the newest last.
        asked: By bundle, when its split was asked for.
        evidence: What bundles show of brokers' figures and capacities.
        direct_memory: What is known of it.
    """

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    at_ms: int = 0
    clock_s: Amount = 0.0
    brokers: dict[str, BrokerHistory] = {}
    left: dict[str, Annotated[list[tuple[str, Amount]], Field(min_length=1)]] = {}
    asked: dict[str, Amount] = {}
    evidence: Evidence = Field(default_factory=Evidence)
    direct_memory: MemoryEvidence = Field(default_factory=MemoryEvidence)
    _parents: dict[str, list[tuple[str, int, int]]] = PrivateAttr(default_factory=dict)

    @classmethod
    def recall(cls, memory: Mapping[str, Any], cluster: Cluster) -> tuple[Memory, float]:
        """The memory at this decision, and the seconds that have passed; what is not valid counts as none.

        Brokers that left are dropped: who comes back may be another one.
        """
        try:
            known = cls.model_validate(memory)
        except ValidationError:
            known = cls()
        passed_s = (cluster.now_ms - known.at_ms) / 1000 if known.brokers else FIRST_S
        passed_s = min(RECENT_S, max(0.0, passed_s))
        known.clock_s += passed_s
        known.at_ms = cluster.now_ms
        for table in (known.brokers, known.evidence.brokers, known.direct_memory.sent):
            for name in table.keys() - cluster.brokers.keys():
                del table[name]
        return known, passed_s

    def dumped(self, grace_s: float, keep_s: float) -> dict[str, Any]:
        """For JSON.

        Args:
            grace_s: Older split wishes are dropped.
            keep_s: Older moves are dropped; of more than `TRACKED` bundles the oldest.
        """
        left = {name: rows[-FORMER_MAX:] for name, rows in self.left.items() if self.clock_s - rows[-1][1] <= keep_s}
        newest = nlargest(TRACKED, left, key=lambda name: (left[name][-1][1], name))
        self.left = {name: left[name] for name in newest}
        self.asked = {name: at_s for name, at_s in self.asked.items() if self.clock_s - at_s <= grace_s}
        dumped: dict[str, Any] = _short(self.model_dump(exclude_defaults=True)) | {"at_ms": self.at_ms}
        return dumped | {"clock_s": round(self.clock_s, 1)}

    def settle(self, cluster: Cluster, passed_s: float) -> set[str]:
        """Forget the moves that were not made; the brokers that took part in those of the last plan."""
        touched: set[str] = set()
        for name in list(self.left):
            rows, bundle = self.left[name], cluster.bundles.get(name)
            source, at_s = rows[-1]
            age_s = self.clock_s - at_s
            if bundle is None or bundle.in_flight:
                touched |= {source} if age_s <= passed_s + 1 else set()
                parts = parse_key(name.encode()) if bundle is None else None
                if parts is not None:
                    self._parents.setdefault(parts.namespace, []).append((name, parts.lower, parts.upper))
            elif bundle.owner == source and cluster.recent.bundles.get(name, inf) >= age_s:
                rows.pop()
                if not rows:
                    del self.left[name]
            elif age_s <= passed_s + 1:
                touched |= {source, bundle.owner or ""}
        return touched

    def former_brokers(self, bundle: Bundle) -> Mapping[str, float]:
        """Brokers that a bundle, or one that it was split from, has left, with the seconds since."""
        rows = list(self.left.get(bundle.name, ()))
        parents = self._parents.get(bundle.namespace, ())
        parts = parse_key(bundle.name.encode()) if parents else None
        for parent, lower, upper in parents:
            if parts is not None and lower <= parts.lower and parts.upper <= upper:
                rows += self.left[parent]
        former: dict[str, float] = {}
        for name, at_s in rows:
            former[name] = min(self.clock_s - at_s, former.get(name, inf))
        return former


def _short(value: Any) -> Any:
    """A value for JSON: tables sorted by key, figures with six digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: _short(value[name]) for name in sorted(value)}
    return [_short(each) for each in value] if isinstance(value, list | tuple) else value
