"""Bundles' parts of their brokers' direct memory, learned from the brokers' figures, and whether these follow moves. Pure.

No report says what a bundle has of its broker's direct memory: caches and buffers, mostly of topics whose consumers are late. But
brokers differ in whose bundles they serve, and so in their memory:

    memory_b / limit_b  ~  idle + sum over tenants n of cost_n * bytes_bn / limit_b

is solved by non-negative least squares over all brokers and the mixtures of the last hours (`LEARNT_S`), with a ridge towards the
prior: every byte a second costs the same, nothing for idling. A tenant is a namespace: its topics have the same kind of
consumers more often than not. A bundle's part is its share of the cost of its broker's bundles; those that are not among the
reported ones share what their broker has beyond those.

Direct memory may also be a high-water mark, which no move makes smaller. It counts only

- while some broker uses more of it than of anything else, and more than `SCARCE` of its limit;
- if it follows traffic: less than half is `idle`;
- if it follows moves. Until the memory of a broker has fallen by `RESPONSE` of what a plan took from it, at most `TRIED` of it
  is taken, from `TRIES_MAX` brokers. After `STRIKES` times in a row that this did not show within `WAIT_S` it does not count for
  `HOLD_S`, and twice as long each further time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import fsum
from typing import Any

from loaddata.model.broker_load import BrokerLoad
from shedders.model.cluster import Bundle
from shedders.model.readings import LEAST_LIMIT, numbers
from shedders.weighted_move.loads import OTHERS, MemoryCosts, memory_share, per, traffic_of

SCARCE = 0.4  # part of a limit from which memory may be scarce
KEPT = 0.8  # once it counts, it does so until it is below this part of what made it count
FOLLOWS = 0.5  # part of the memory that has to follow traffic
TENANTS_MAX = 16  # tenants with a cost of their own, those with the most traffic; the others have one together
BROKERS_MAX = 128  # brokers that are compared: of more, some at equal distances by their memory
RIDGE = 0.003  # weight of the prior: as much as brokers that differ by the root of this (5 %)
ROUNDS = 200  # maximum number of rounds of the solution
CLOSE = 1e-6  # it is complete when no part changes by more
LEARNT_S = 7_200.0
FIRST_S = 300.0  # the first figures count as ones that have lasted for this time
RESPONSE = 0.4
TRIED = 0.25
TRIES_MAX = 3
STRIKES = 3
SHOWS = 0.08  # a smaller part of a limit is within the error: what plans take is added up until it can show
SUMS_S = 1_200.0  # for at most this time
WAIT_S = 300.0
HOLD_S = 7_200.0
HOLD_MAX_S = 86_400.0


@dataclass(slots=True)
class MemoryEvidence:
    """What is known of direct memory.

    Attributes:
        counts: It is scarce, and counts unless it does not follow.
        proven: It has followed a move.
        strikes: How often in a row it did not follow.
        held_s: Seconds for which it does not count; `hold_s`: how long it will be the next time.
        sent: By broker, its use before a plan took some away, what was taken, both in parts of the limit, and the seconds since.
        tenants: Those with a cost of their own, sorted.
        products: Means over brokers and time of the products of the columns: idle, the tenants, the others, memory; by rows.
        learnt_s: For how long.
        idle: Part of the memory that does not follow traffic.
    """

    counts: bool = False
    proven: bool = False
    strikes: int = 0
    held_s: float = 0.0
    hold_s: float = HOLD_S
    sent: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    tenants: list[str] = field(default_factory=list)
    products: list[list[float]] = field(default_factory=list)
    learnt_s: float = 0.0
    idle: float = 0.0

    @classmethod
    def recall(cls, memory: Any, passed_s: float, present: Mapping[str, object]) -> MemoryEvidence:
        """From JSON; what is not valid starts over."""
        if not isinstance(memory, Mapping):
            return cls()
        state = numbers(memory.get("state"), 5) or [0.0, 0.0, 0.0, 0.0, HOLD_S]
        table = memory.get("sent")
        sent = {
            name: (row[0], row[1], row[2] + passed_s)
            for name, values in (table.items() if isinstance(table, Mapping) else ())
            if (row := numbers(values, 3)) is not None and name in present
        }
        known = cls(
            state[0] > 0,
            state[1] > 0,
            int(min(state[2], STRIKES)),
            max(0.0, min(HOLD_MAX_S, state[3]) - passed_s),
            min(HOLD_MAX_S, max(HOLD_S, state[4])),
            sent,
        )
        names, rows = memory.get("tenants"), memory.get("products")
        if not isinstance(names, list | tuple) or not isinstance(rows, list | tuple) or len(names) > TENANTS_MAX:
            return known
        size = len(names) + 3
        products = [row for values in rows if (row := numbers(values, size)) is not None]
        if len(products) == len(rows) == size and all(isinstance(name, str) for name in names):
            known.tenants, known.products = list(names), products
            known.learnt_s = (numbers([memory.get("learnt_s")], 1) or [0.0])[0]
        return known

    def dumped(self) -> dict[str, Any]:
        """For JSON; empty if direct memory was never scarce."""
        if not (self.counts or self.strikes or self.held_s or self.products):
            return {}
        return {
            "learnt_s": round(self.learnt_s, 1),
            "products": [[_short(value) for value in row] for row in self.products],
            "sent": {name: [_short(value) for value in self.sent[name]] for name in sorted(self.sent)},
            "state": [int(self.counts), int(self.proven), self.strikes, round(self.held_s, 1), self.hold_s],
            "tenants": self.tenants,
        }

    @property
    def is_trusted(self) -> bool:
        """Whether direct memory counts: it is scarce, and nothing says that it does not follow."""
        return self.counts and not self.held_s and self.idle < FOLLOWS

    def look(self, loads: Mapping[str, BrokerLoad], levels: Mapping[str, float]) -> bool:
        """Whether direct memory is scarce anywhere.

        Args:
            levels: What each broker uses of its most used other resource, in parts of its limit.
        """
        kept = KEPT if self.counts else 1.0
        self.counts = any(
            share > kept * SCARCE and share > kept * levels[name]
            for name, load in loads.items()
            if (share := memory_share(load)) > 0
        )
        if not self.counts:
            self.sent = {}
        return self.counts

    def responses(self, shares: Mapping[str, float]) -> None:
        """Compare what plans took from brokers with their present use.

        Args:
            shares: By broker whose moves are made, the part of its limit that it uses now.
        """
        followed = missed = False
        for name, (before, taken, age_s) in list(self.sent.items()):
            share = shares.get(name)
            if taken < SHOWS:
                if age_s >= SUMS_S:
                    del self.sent[name]
            elif share is not None and before - share >= RESPONSE * taken:
                followed = True
                del self.sent[name]
            elif age_s >= WAIT_S:
                missed = missed or share is not None
                del self.sent[name]
        if followed:
            self.proven, self.strikes, self.hold_s = True, 0, HOLD_S
        elif missed:
            self.strikes += 1
        if self.strikes >= STRIKES:
            self.held_s, self.hold_s = self.hold_s, min(HOLD_MAX_S, 2 * self.hold_s)
            self.proven, self.strikes, self.sent = False, 0, {}

    def took(self, name: str, before: float, taken: float) -> None:
        """Record that a plan takes this part of its limit from a broker that uses so much of it; negative: it adds some."""
        if taken < 0:
            self.sent.pop(name, None)
        elif taken > 0:
            first, sum_taken, _ = self.sent.get(name, (before, 0.0, 0.0))
            self.sent[name] = max(first, before), sum_taken + taken, 0.0

    def is_awaited(self, name: str) -> bool:
        """Whether it is to be seen yet if a broker's direct memory has followed what was moved."""
        return name in self.sent and self.sent[name][1] >= SHOWS

    def learn(
        self,
        loads: Mapping[str, BrokerLoad],
        bundles: Callable[[str], Sequence[Bundle]],
        passed_s: float,
        believed: Collection[str],
    ) -> MemoryCosts:
        """Add the brokers' figures, and return what traffic costs.

        Args:
            bundles: Those that a broker serves.
            believed: Brokers whose figures are not doubted.
        """
        having = sorted(
            (memory_share(load), name) for name, load in loads.items() if load.direct_memory.limit >= LEAST_LIMIT
        )
        step = -(-len(having) // BROKERS_MAX) or 1
        compared = [name for _, name in having[::step] if name in believed]

        @cache
        def traffic(name: str) -> Mapping[str, float]:
            return traffic_of_tenants(loads[name], bundles(name))

        totals: dict[str, float] = {}
        for name in compared:
            for tenant, amount in traffic(name).items():
                totals[tenant] = totals.get(tenant, 0.0) + amount
        self._choose(totals)
        columns = {tenant: place for place, tenant in enumerate(self.tenants, 1)}
        self._add([_row(loads[name], traffic(name), columns) for name in compared], passed_s)
        idle, costs = self._solved()
        return MemoryCosts(idle, costs, traffic)

    def _choose(self, totals: Mapping[str, float]) -> None:
        """Which tenants have a cost of their own; if that changes, learning starts over."""
        kept = [tenant for tenant in self.tenants if totals.get(tenant, 0.0) > 0]
        others = sorted(totals.keys() - set(kept), key=lambda tenant: (-totals[tenant], tenant))
        new = [tenant for tenant in others if totals[tenant] > 0][: TENANTS_MAX - len(kept)]
        if new or len(kept) < len(self.tenants) or not self.products:
            self.tenants = sorted([*kept, *new])
            size = len(self.tenants) + 3
            self.products, self.learnt_s = [[0.0] * size for _ in range(size)], FIRST_S

    def _add(self, rows: Sequence[Sequence[float]], passed_s: float) -> None:
        if not rows:
            return
        weight = (
            1.0
            if not self.products[0][0]
            else min(1.0, max(passed_s / LEARNT_S, per(passed_s, self.learnt_s + passed_s)))
        )
        self.learnt_s = min(LEARNT_S, self.learnt_s + passed_s)
        size = len(self.products)
        for i in range(size):
            own = self.products[i]
            for j in range(i, size):
                mean = fsum(row[i] * row[j] for row in rows) / len(rows)
                own[j] += (mean - own[j]) * weight
                self.products[j][i] = own[j]

    def _solved(self) -> tuple[float, dict[str, float]]:
        """The idle part of a limit, and what a byte a second of each tenant costs."""
        names, products = [*self.tenants, OTHERS], self.products
        means, last = products[0][:-1], len(self.products) - 1
        used = products[0][last]
        traffic = fsum(means[1:])
        prior = [0.0, *(per(mean, traffic) for mean in means[1:])]
        parts = prior
        if used > 0 and traffic > 0:
            matrix = [[per(per(products[i][j], means[i]), means[j]) for j in range(last)] for i in range(last)]
            right = [per(per(products[i][last], means[i]), used) for i in range(last)]
            parts = non_negative(matrix, right, prior)
        total = fsum(parts)
        if not total > 0:
            parts, total = prior, fsum(prior)
        self.idle = per(parts[0], total)
        return self.idle * used, {
            name: per(used * per(part, total), mean)
            for name, part, mean in zip(names, parts[1:], means[1:], strict=True)
        }

    def why_tried(self, name: str) -> str:
        """A sentence on a broker that gives none of its direct memory yet."""
        waited = self.sent.get(name)
        if waited is None:
            return f"whether direct memory follows what moves is being tried with {len(self.sent) or TRIES_MAX} others first"
        return (
            f"a part of its direct memory was moved away {waited[2]:.0f} s ago; more follows once its reports show that"
        )

    def why_held(self, load: BrokerLoad) -> str:
        """A sentence on direct memory that is scarce but does not count."""
        used = f"{memory_share(load) * 100:.0f} % of its direct memory is used"
        if self.held_s:
            return f"{used}, but it did not fall when load was moved away: it does not count for {self.held_s:.0f} s"
        return f"{used}, but it does not follow traffic: brokers with more have no more of it"


def traffic_of_tenants(load: BrokerLoad, bundles: Iterable[Bundle]) -> dict[str, float]:
    """A broker's bytes a second by tenant: bundles that are not known share evenly what it has beyond the known."""
    known: dict[str, float] = {}
    unknown: dict[str, int] = {}
    for bundle in bundles:
        namespace = bundle.namespace
        traffic = traffic_of(bundle)
        if traffic is None:
            unknown[namespace] = unknown.get(namespace, 0) + 1
        else:
            known[namespace] = known.get(namespace, 0.0) + traffic.msg_throughput
    rest = load.msg_throughput - fsum(known.values())
    if unknown and rest > 0:
        each = rest / sum(unknown.values())
        for namespace, count in unknown.items():
            known[namespace] = known.get(namespace, 0.0) + each * count
    return known


def non_negative(matrix: Sequence[Sequence[float]], right: Sequence[float], prior: Sequence[float]) -> list[float]:
    """The least squares of these products with a ridge towards the prior, no part below 0: one part after the other, in turn."""
    parts = list(prior)
    for _ in range(ROUNDS):
        largest = 0.0
        for place, row in enumerate(matrix):
            others = fsum(value * part for value, part in zip(row, parts, strict=True)) - row[place] * parts[place]
            part = max(0.0, (right[place] - others + RIDGE * prior[place]) / (row[place] + RIDGE))
            largest = max(largest, abs(part - parts[place]))
            parts[place] = part
        if largest < CLOSE:
            break
    return parts


def _row(load: BrokerLoad, traffic: Mapping[str, float], columns: Mapping[str, int]) -> list[float]:
    """A broker's columns: 1 for idling, its traffic by tenant, and its memory, all in parts of its limit."""
    last = len(columns) + 1
    row = [0.0] * (last + 2)
    limit = load.direct_memory.limit
    row[0], row[-1] = 1.0, per(load.direct_memory.usage, limit)
    for tenant, amount in traffic.items():
        row[columns.get(tenant, last)] += per(amount, limit)
    return row


def _short(value: float) -> float:
    return float(f"{value:.6g}")
