"""Bundles' parts of their brokers' direct memory, learned from the brokers' figures, and whether these follow moves. Pure.

No report says what a bundle has of its broker's direct memory: caches and buffers, mostly of topics whose consumers are late. But
brokers differ in whose bundles they serve, and so in their memory:

    memory_b / limit_b  ~  idle + sum over tenants n of cost_n * bytes_bn / limit_b

is solved by non-negative least squares over all brokers and the mixtures of the last hours (`HOLD_S`), with a ridge towards the
prior: every byte a second costs the same, nothing for idling. A tenant is a namespace: its topics have the same kind of
consumers more often than not. A bundle's part is its share of the cost of its broker's bundles; those that are not among the
reported ones share what their broker has beyond those.

Direct memory may also be a high-water mark, which no move makes smaller. It counts only while some broker uses more of it than of
anything else, and more than `SCARCE` of its limit; if less than half of it is `idle`; and if it follows moves: after `FEWEST`
times that it did not fall by `FOLLOWS` of what a plan took away within `SETTLED_S` it does not count for `HOLD_S`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from math import fsum
from typing import Annotated, NamedTuple

from pydantic import BaseModel, Field

from loaddata.model.broker_load import BrokerLoad
from shedders.model.cluster import Bundle
from shedders.model.readings import MOST
from shedders.weighted_move.evidence import FEWEST, FOLLOWS, HOLD_S, SHOWS, Amount
from shedders.weighted_move.loads import OTHERS, SETTLED_S, MemoryCosts, fit_parts, memory_share, per, traffic_of

SCARCE = 0.4  # part of a limit from which memory may be scarce
KEPT = 0.8  # once it counts, it does so until a fifth below that
TENANTS_MAX = 16  # tenants with a cost of their own, those with the most traffic; the others have one together
BROKERS_MAX = 128  # brokers that are compared: of more, some at equal distances by their memory


class TakenMemory(NamedTuple):
    """A broker's direct memory before a plan took some, and what was taken, in parts of its limit; when that was."""

    before: Amount
    taken: Amount
    at_s: Amount


class MemoryEvidence(BaseModel):
    """What is known of direct memory.

    Attributes:
        counts: It is scarce, and counts unless it does not follow.
        strikes: How often in a row it did not follow.
        held_s: Until when it does not count.
        sent: By broker, what a plan took.
        tenants: Those with a cost of their own, sorted.
        products: Means over brokers and time of the products of the columns: idle, the tenants, the others, memory; by rows.
        learnt_s: For how long.
        idle: Part of the memory that does not follow traffic.
    """

    counts: bool = False
    strikes: Annotated[int, Field(ge=0, le=FEWEST)] = 0
    held_s: Amount = 0.0
    sent: dict[str, TakenMemory] = {}
    tenants: Annotated[list[str], Field(max_length=TENANTS_MAX)] = []
    products: list[list[Amount]] = []
    learnt_s: Amount = 0.0
    idle: Amount = 0.0

    def look(
        self, shares: Mapping[str, float], levels: Mapping[str, float], touched: Collection[str], now_s: float
    ) -> bool:
        """Whether direct memory is scarce somewhere; compares what plans took with the present use.

        Args:
            shares: By broker, the part of its limit that it uses.
            levels: What each broker uses of its most used other resource, in parts of its limit.
            touched: Brokers of the last plan whose moves were made; what was planned for others took nothing.
        """
        kept = KEPT if self.counts else 1.0
        self.counts = any(
            share > kept * SCARCE and share > kept * levels[name] for name, share in shares.items() if share > 0
        )
        for name, row in list(self.sent.items()):
            fell = shares.get(name, 0.0) <= row.before - FOLLOWS * row.taken
            if not self.counts or (row.at_s >= now_s - 1 and name not in touched) or name not in shares:
                del self.sent[name]
            elif fell or now_s - row.at_s >= SETTLED_S:
                self.strikes = 0 if fell else self.strikes + 1
                del self.sent[name]
        if self.strikes >= FEWEST:
            self.held_s, self.strikes = now_s + HOLD_S, 0
        return self.counts

    def took(self, name: str, before: float, taken: float, now_s: float) -> None:
        """Record that a plan takes this part of its limit from a broker that uses the first part of it, if that can show."""
        if taken >= SHOWS:
            self.sent[name] = TakenMemory(before, taken, now_s)

    def learn(
        self,
        loads: Mapping[str, BrokerLoad],
        bundles: Callable[[str], Sequence[Bundle]],
        passed_s: float,
        believed: Collection[str],
    ) -> MemoryCosts | None:
        """Add the brokers' figures, and return what traffic costs; None if the memory does not follow traffic.

        Args:
            bundles: Those that a broker serves.
            believed: Brokers whose figures are not doubted.
        """
        having = sorted((memory_share(load), name) for name, load in loads.items() if memory_share(load) > 0)
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
        return MemoryCosts(idle, costs, traffic) if self.idle < FOLLOWS else None

    def _choose(self, totals: Mapping[str, float]) -> None:
        """Which tenants have a cost of their own; if that changes, learning starts over."""
        kept = [tenant for tenant in self.tenants if totals.get(tenant, 0.0) > 0]
        others = sorted(totals.keys() - set(kept), key=lambda tenant: (-totals[tenant], tenant))
        new = [tenant for tenant in others if totals[tenant] > 0][: TENANTS_MAX - len(kept)]
        size = len(kept) + len(new) + 3
        if new or len(kept) < len(self.tenants) or [len(row) for row in self.products] != [size] * size:
            self.tenants = sorted([*kept, *new])
            self.products, self.learnt_s = [[0.0] * size for _ in range(size)], SETTLED_S

    def _add(self, rows: Sequence[Sequence[float]], passed_s: float) -> None:
        if not rows:
            return
        weight = max(passed_s / HOLD_S, per(passed_s, self.learnt_s + passed_s)) if self.products[0][0] else 1.0
        self.learnt_s = min(HOLD_S, self.learnt_s + passed_s)
        size = len(self.products)
        for i in range(size):
            own = self.products[i]
            for j in range(i, size):
                mean = fsum(row[i] * row[j] for row in rows) / len(rows)
                own[j] = min(MOST, own[j] + (mean - own[j]) * min(1.0, weight))
                self.products[j][i] = own[j]

    def _solved(self) -> tuple[float, dict[str, float]]:
        """The idle part of a limit, and what a byte a second of each tenant costs."""
        names, products = [*self.tenants, OTHERS], self.products
        means, used = products[0][:-1], products[0][-1]
        traffic = fsum(means[1:])
        if not used > 0 or not traffic > 0:
            self.idle = 0.0
            return 0.0, {}
        self.idle, *parts = fit_parts(products, [0.0, *(per(mean, traffic) for mean in means[1:])])
        costs = zip(names, parts, means[1:], strict=True)
        return self.idle * used, {name: per(used * part, mean) for name, part, mean in costs}


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


def _row(load: BrokerLoad, traffic: Mapping[str, float], columns: Mapping[str, int]) -> list[float]:
    """A broker's columns: 1 for idling, its traffic by tenant, and its memory, all in parts of its limit."""
    last, limit = len(columns) + 1, load.direct_memory.limit
    row = [1.0, *([0.0] * last), memory_share(load)]
    for tenant, amount in traffic.items():
        row[columns.get(tenant, last)] += per(amount, limit)
    return row
