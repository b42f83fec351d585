"""Moves in flight: bookings that the reports do not show yet, and the limits on their number and share of the load. Pure.

Upstream forgets what it has just decided: the next choice sees the old loads, and a herd of bundles goes to one broker
(pain point of both load managers). Here a move counts from the moment it is booked until the reports of both brokers count it, or
until it fails.

Times are the leader's monotonic seconds, given with every call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import fsum

from pydantic import Field

from shedders.model.cluster import Broker, Cluster, RecentMoves
from shedders.model.moved_cluster import MovedLoad, cargo_of, shift, traffic_of
from shedders.model.plan import BundleMove, Left, together
from shedders.model.readings import is_amount
from shedders.model.strategy import StrategySettings


@dataclass(frozen=True, slots=True)
class Booked:
    """One move in flight.

    Attributes:
        destination: None while it is not known (a plain unload).
        cargo: The load that moves with it, as of the booking.
        arrived: Its destination owns it on the channel.
        source_knows: The source's report leaves it out already; `destination_knows`: the destination's counts it.
    """

    bundle: str
    source: str
    destination: str | None
    cargo: MovedLoad
    arrived: bool = False
    source_knows: bool = False
    destination_knows: bool = False


def on_the_way(booked: Iterable[Booked]) -> dict[str, list[str]]:
    """By broker, the bundles that its report does not count yet; filters and placements get this and the reports."""
    bundles: dict[str, list[str]] = {}
    for move in booked:
        if move.destination is not None and not move.destination_knows:
            bundles.setdefault(move.destination, []).append(move.bundle)
    return {name: sorted(bundles[name]) for name in sorted(bundles)}


def adjusted(cluster: Cluster, booked: Sequence[Booked]) -> Cluster:
    """The cluster as shedders see it: loads are moved; what has not arrived is in flight and was moved just now.

    Args:
        cluster: As the channel and the reports have it.
    """
    if not booked:
        return cluster
    brokers, bundles = dict(cluster.brokers), dict(cluster.bundles)
    moved, sides = dict(cluster.recent.bundles), dict(cluster.recent.brokers)
    for move in booked:
        _book_load(brokers, move)
        if move.arrived:
            continue
        moved[move.bundle] = 0.0
        sides |= dict.fromkeys((name for name in (move.source, move.destination) if name is not None), 0.0)
        if move.bundle in bundles:
            bundles[move.bundle] = replace(bundles[move.bundle], in_flight=True)
    return replace(cluster, brokers=brokers, bundles=bundles, recent=RecentMoves(moved, sides))


def arrived(cluster: Cluster, booked: Sequence[Booked]) -> Cluster:
    """The cluster once all booked moves have arrived and are in the reports."""
    if not booked:
        return cluster
    brokers, bundles = dict(cluster.brokers), dict(cluster.bundles)
    for move in booked:
        _book_load(brokers, move)
        if move.bundle in bundles and move.destination is not None:
            bundles[move.bundle] = replace(bundles[move.bundle], owner=move.destination, in_flight=False)
    return replace(cluster, brokers=brokers, bundles=bundles)


@dataclass(frozen=True, slots=True)
class EndedBooking:
    """A booking that no longer counts.

    Attributes:
        how: `counted` (both reports show it), `expired`, `cancelled`, `gone` (the bundle or its broker no longer exists) or
            `elsewhere` (another broker owns it).
    """

    bundle: str
    how: str
    why: str


class BookedMoves:
    """The moves in flight.

    Args:
        expire_s: A move that has not arrived by then counts as failed; one that has arrived and is not in the reports
            by then is assumed to be counted.
        keep_s: How long bundles and brokers that took part in a move are remembered.
    """

    def __init__(self, *, expire_s: float, keep_s: float) -> None:
        self._expire_s = expire_s
        self._keep_s = keep_s
        self._moves: dict[str, Booked] = {}
        self._since: dict[str, float] = {}
        self._bundles: dict[str, float] = {}
        self._brokers: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._moves)

    def __contains__(self, bundle: object) -> bool:
        return bundle in self._moves

    def bounds(self, *, expire_s: float, keep_s: float) -> None:
        self._expire_s = expire_s
        self._keep_s = keep_s

    @property
    def moves(self) -> Sequence[Booked]:
        return [self._moves[name] for name in sorted(self._moves)]

    def book(self, cluster: Cluster, moves: Iterable[BundleMove], now_s: float) -> Sequence[BundleMove]:
        """Count moves from now on.

        Returns:
            Those that are booked; the others are of unknown bundles, of bundles that their source does not own, or in flight.
        """
        accepted = []
        for move in moves:
            bundle = cluster.bundles.get(move.bundle)
            if bundle is None or bundle.owner != move.source or move.bundle in self._moves:
                continue
            source = cluster.brokers.get(move.source)
            cargo = cargo_of(bundle, None if source is None else source.load)
            self._moves[move.bundle] = Booked(move.bundle, move.source, move.destination, cargo)
            self._since[move.bundle] = now_s
            accepted.append(move)
        return accepted

    def adopt(self, moves: Iterable[Booked], now_s: float) -> None:
        """Count moves in flight that others have started: a new leader does so first."""
        for move in moves:
            if move.bundle not in self._moves:
                self._moves[move.bundle] = move
                self._since[move.bundle] = now_s

    def cancel(self, bundle: str, why: str) -> EndedBooking | None:
        if bundle not in self._moves:
            return None
        self._drop(bundle)
        return EndedBooking(bundle, "cancelled", why)

    def acknowledge(self, cluster: Cluster, now_s: float) -> Sequence[EndedBooking]:
        """Compare with the channel and the reports; drop bookings that are counted, have failed or have expired.

        Args:
            cluster: As the channel and the reports have it, without what is booked.
        """
        ended = []
        for name in sorted(self._moves):
            move = self._arrival(cluster, self._moves[name], now_s)
            if isinstance(move, Booked):
                move = self._reports(cluster, move, now_s)
            if isinstance(move, EndedBooking):
                self._drop(name)
                ended.append(move)
            else:
                self._moves[name] = move
        self._forget(now_s)
        return ended

    def recent(self, now_s: float) -> RecentMoves:
        """Recent moves of this leader; those of others are in the log (`shedders.balancer.cluster_inputs`)."""
        return RecentMoves(
            {name: max(0.0, now_s - self._bundles[name]) for name in sorted(self._bundles)},
            {name: max(0.0, now_s - self._brokers[name]) for name in sorted(self._brokers)},
        )

    def _arrival(self, cluster: Cluster, move: Booked, now_s: float) -> Booked | EndedBooking:
        bundle = cluster.bundles.get(move.bundle)
        if bundle is None:
            return EndedBooking(move.bundle, "gone", "the bundle no longer exists")
        if move.arrived:
            return move
        owner = None if bundle.in_flight or bundle.owner == move.source else bundle.owner
        if owner is not None and move.destination not in (None, owner):
            return EndedBooking(move.bundle, "elsewhere", f"{owner} owns it, not {move.destination}")
        if owner is not None:
            # It may have arrived long before this call. With a later time than the true one reports would count too early.
            age_s = cluster.recent.bundles.get(move.bundle, 0.0)
            at_s = max(self._since[move.bundle], now_s - age_s)
            self._bundles[move.bundle] = at_s
            for name in (move.source, owner):
                self._brokers[name] = max(self._brokers.get(name, at_s), at_s)
            self._since[move.bundle] = at_s
            return replace(move, destination=owner, arrived=True)
        if now_s - self._since[move.bundle] >= self._expire_s:
            return EndedBooking(move.bundle, "expired", f"not moved within {self._expire_s:.0f} s")
        if move.destination is not None and move.destination not in cluster.brokers:
            return EndedBooking(move.bundle, "gone", f"{move.destination} is no longer registered")
        return move

    def _reports(self, cluster: Cluster, move: Booked, now_s: float) -> Booked | EndedBooking:
        if not move.arrived:
            return move
        since_s = self._since[move.bundle]
        source_knows = move.source_knows or _knows(cluster.brokers.get(move.source), since_s, now_s)
        taker = None if move.destination is None else cluster.brokers.get(move.destination)
        destination_knows = move.destination_knows or _knows(taker, since_s, now_s)
        if source_knows and destination_knows:
            return EndedBooking(move.bundle, "counted", "both reports show it")
        if now_s - since_s >= self._expire_s:
            return EndedBooking(
                move.bundle, "counted", f"arrived {now_s - since_s:.0f} s ago; the wait for reports has ended"
            )
        return replace(move, source_knows=source_knows, destination_knows=destination_knows)

    def _drop(self, bundle: str) -> None:
        del self._moves[bundle], self._since[bundle]

    def _forget(self, now_s: float) -> None:
        for ages in (self._bundles, self._brokers):
            for name in [name for name, at_s in ages.items() if now_s - at_s > self._keep_s]:
                del ages[name]


def _knows(broker: Broker | None, since_s: float, now_s: float) -> bool:
    """Whether a broker's report was made after its ownership changed; one that is gone no longer reports."""
    if broker is None:
        return True
    return broker.load is not None and not broker.load_lapsed and now_s - broker.load_age_s >= since_s


def _book_load(brokers: dict[str, Broker], move: Booked) -> None:
    """Shift the load of a move on those of its brokers whose report does not show it."""
    source = None if move.source_knows else move.source
    shift(brokers, source, None if move.destination_knows else move.destination, move.cargo)


class BudgetSettings(StrategySettings):
    """Limits of the balancer; upstream has none but the strategies' own."""

    moves: int = Field(
        default=500,
        ge=1,
        le=100_000,
        description="Maximum number of bundles in flight; at eight concurrent transfers, a few seconds of work.",
    )
    load_percent: float = Field(
        default=60.0,
        gt=0,
        le=100,
        description="Maximum share of the cluster's traffic in flight, in percent of its bytes or of its messages, whichever is "
        "larger. A single move may exceed it, but then moves alone. The default allows the number of brokers to be doubled "
        "in one decision.",
    )


@dataclass(frozen=True, slots=True)
class DecisionRules:
    """Rules that apply to every strategy's plan when it is carried out.

    Attributes:
        budget: Limits on the moves in flight; None: no limits.
        only_unload: Bundles are unloaded without naming a destination.
        off: Why shedding is off; None while it is on.
    """

    budget: BudgetSettings | None = None
    only_unload: bool = False
    off: str | None = None


NO_RULES = DecisionRules()


@dataclass(frozen=True, slots=True)
class Budget:
    """The remaining budget.

    Attributes:
        load_percent: Traffic that may still start to move, in percent of the cluster's.
    """

    moves: int
    load_percent: float


@dataclass(frozen=True, slots=True)
class Admitted:
    """The part of a plan that the budget allows.

    Attributes:
        left: Moves that have to wait, with the reason `budget`, or that are refused: `unload-mode`, `shedding-off`.
    """

    moves: Sequence[BundleMove]
    left: Sequence[Left]
    budget: Budget


def allowed(
    cluster: Cluster, moves: Sequence[BundleMove], on_the_way: Sequence[Booked], rules: DecisionRules
) -> Admitted:
    """The moves of a plan that the rules allow; the balancer and a dry run use this."""
    if rules.off is not None:
        return Admitted([], [Left(move.bundle, "shedding-off", rules.off) for move in moves], Budget(0, 0.0))
    swaps = [group for group in together(moves) if rules.only_unload and any(move.swap for move in group)]
    why = "it is part of an exchange, and nothing can be exchanged without naming destinations"
    halves = [Left(move.bundle, "unload-mode", why) for group in swaps for move in group]
    out = {half.name for half in halves}
    rest = [move for move in moves if move.bundle not in out]
    if rules.budget is None:
        return Admitted(rest, halves, Budget(len(rest), 100.0))
    admitted = admit(cluster, rest, on_the_way, rules.budget)
    return Admitted(admitted.moves, [*halves, *admitted.left], admitted.budget)


def admit(
    cluster: Cluster, moves: Sequence[BundleMove], on_the_way: Sequence[Booked], settings: BudgetSettings
) -> Admitted:
    """Admit the plan's moves in their order as far as the budget allows.

    Bundles that two brokers exchange go together or not at all: half an exchange may be worse than none.
    """
    shares = _Shares(cluster)
    moves_left = settings.moves - len(on_the_way)
    load_left = settings.load_percent - sum(
        shares.of(move.cargo.msg_throughput, move.cargo.msg_rate) for move in on_the_way
    )
    going: list[BundleMove] = []
    left: list[Left] = []
    for group in together(moves):
        need = sum(shares.of_bundle(move.bundle) for move in group)
        alone = not going and not on_the_way
        if len(group) <= moves_left and (need <= load_left or alone):
            going += group
            moves_left -= len(group)
            load_left -= need
            continue
        room = f"{max(0, moves_left)} moves and {max(0.0, load_left):.1f} % of the load may still start"
        what = "it has" if len(group) == 1 else f"it and the {len(group) - 1} others of its exchange have"
        why = f"{what} {need:.1f} % of the load; {room}"
        left += [Left(move.bundle, "budget", why) for move in group]
    order = {move.bundle: number for number, move in enumerate(moves)}
    going.sort(key=lambda move: order[move.bundle])
    return Admitted(going, left, Budget(max(0, moves_left), max(0.0, load_left)))


class _Shares:
    """Traffic in percent of the whole cluster's.

    The whole is the sum of the brokers' reports or of the bundles, whichever is larger: the leader may know only the heaviest.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    @cached_property
    def _whole(self) -> tuple[float, float]:
        """Bytes and messages a second of the whole cluster; computed only if something moves."""
        throughputs, rates = [], []
        # There may be a hundred thousand bundles: calls of properties would take most of the time.
        for bundle in self._cluster.bundles.values():
            traffic = traffic_of(bundle)
            throughputs.append(traffic.msg_throughput_in + traffic.msg_throughput_out)
            rates.append(traffic.msg_rate_in + traffic.msg_rate_out)
        loads = [
            broker.load
            for broker in self._cluster.brokers.values()
            if broker.load is not None and is_amount(broker.load.msg_throughput) and is_amount(broker.load.msg_rate)
        ]
        return (
            max(fsum(throughputs), fsum(load.msg_throughput for load in loads)),
            max(fsum(rates), fsum(load.msg_rate for load in loads)),
        )

    def of(self, throughput: float, rate: float) -> float:
        throughputs, rates = self._whole
        by_bytes = throughput / throughputs if throughputs > 0 else 0.0
        by_messages = rate / rates if rates > 0 else 0.0
        return 100 * max(by_bytes, by_messages)

    def of_bundle(self, name: str) -> float:
        bundle = self._cluster.bundles.get(name)
        if bundle is None:
            return 0.0
        traffic = traffic_of(bundle)
        return self.of(traffic.msg_throughput, traffic.msg_rate)
