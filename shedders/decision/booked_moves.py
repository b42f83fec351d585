"""Bookings of moves that were decided and that the reports do not show yet: booked at once, cancelled when they fail.

Upstream forgets what it has just decided: the next choice sees the old loads, and a herd of bundles goes to one broker
(pain point of both load managers). Here a move counts from the moment it is booked until the reports of both brokers count it.

Pure: times are the leader's monotonic seconds, given with every call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from shedders.model.cluster import Broker, Cluster, RecentMoves
from shedders.model.moved_cluster import MovedLoad, cargo_of, shift
from shedders.model.plan import BundleMove


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
        """Change the times."""
        self._expire_s = expire_s
        self._keep_s = keep_s

    @property
    def moves(self) -> Sequence[Booked]:
        """Those in flight, in order of the bundles' names."""
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
        """Cancel the booking of a move that failed; None if it is not booked."""
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
        """Recent moves of this leader; those of others are in the log (`shedders.balancer.recent_moves`)."""
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
