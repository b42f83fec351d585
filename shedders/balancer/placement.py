"""Placement with load data in a live broker: the engine's port, backed by filters and strategy, and the record of its choices.

The engine calls it in the loop's thread, within a step: everything comes from memory, and nothing may raise. Brokers' loads
are refreshed every `placement_refresh_s`; bundles placed since then are booked, so a storm of assignments does not go to
one broker.

Placements come in storms (a cold start places 65,000 bundles), one by one, inside a step of the engine. So they are noted there,
and recorded afterwards in batches (`PlacementRecorder`); this never delays a placement.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ulid import ULID

from shedders.decision.placing import Pipeline
from shedders.decisions.builder import Occasion, place_record
from shedders.errors import StrategyFailedError
from shedders.filters.destinations import Takers
from shedders.model.cluster import Bundle, Cluster, Policies
from shedders.model.plan import Placed
from statechannel.engine.placement import FewestBundles
from statechannel.engine.troubles import NoBroker, UnplacedCause
from statechannel.logger import SafeLogger
from statechannel.protocol.bounded import remember

if TYPE_CHECKING:
    from shedders.balancer.ports import Ports
    from shedders.balancer.settings import BalancerSettings
    from shedders.decisions.topic import WriteCounts


_log = SafeLogger(__name__)
OFFERED = "offered"  # word of the filter for brokers that the engine did not offer (`shedders.filters.chain`)
_CORDON = "cordon"
_NO_BROKERS = "no-brokers"
_ORDERS = frozenset({_CORDON, "isolation", "pin"})  # words of the filters for what only operators change
PRICE = 10.0  # the inputs are not rebuilt before this multiple of the time that it took to build them


class PlacementInputs(NamedTuple):
    """The inputs of placements, cached for a while.

    Attributes:
        cluster: Bundles in flight count as arrived.
        known: Whether the policies were read: before that no placement is possible.
        modular: The leader places on request; `leading`: that is this broker.
    """

    cluster: Cluster
    known: bool = True
    modular: bool = False
    leading: bool = False


@dataclass(frozen=True, slots=True)
class PlacedNote:
    """One choice, for decision records and for `why`.

    Attributes:
        how: `strategy`; `fewest` if the strategy could not decide; `failed` if it raised; `nobody` if the filters
            left none; `unread` before the policies were read; `asked` if the leader was asked.
        reason: A word for metrics: the strategy that chose, the filter that removed most brokers, or the failure.
    """

    bundle: str
    broker: str | None
    how: str
    placed: Placed | None
    reason: str = "none"


class PlacedEnd(NamedTuple):
    """A confirmed placement.

    Attributes:
        how, reason: Of the last choice.
        took_s: From the first choice of this broker until it read that the bundle is served there.
    """

    how: str
    reason: str
    took_s: float


class _Awaited(NamedTuple):
    """An unconfirmed placement: times of the first and the last choice, and the last choice."""

    first_s: float
    last_s: float
    note: PlacedNote


@dataclass(slots=True)
class LivePlacement:
    """The placement of a live broker. `statechannel.engine.placement.Placement` is the port.

    Attributes:
        surroundings: Builds the inputs, called when the cached ones are too old; may take a while with many bundles.
        held: Whether a bundle has an owner, or is in flight to one: it is being moved, not placed.
        now_s: Monotonic.
        ask_leader: Modular manager: asks the leader to place a bundle. Called once for each, until `leader_wait_s` is over.
        settings: May change while it runs. The inputs are rebuilt after `placement_refresh_s`; later if that would take more than
            a tenth of the time.
    """

    surroundings: Callable[[], PlacementInputs]
    held: Callable[[str], bool]
    pipeline: Callable[[], Pipeline]
    now_s: Callable[[], float]
    ask_leader: Callable[[str], None]
    settings: Callable[[], BalancerSettings]
    counts: Counter[str] = field(default_factory=Counter)
    notes: list[PlacedNote] = field(default_factory=list)
    ends: list[PlacedEnd] = field(default_factory=list)
    failing: str = ""
    _at: PlacementInputs | None = None
    _next_s: float = float("-inf")
    _booked: dict[str, list[str]] = field(default_factory=dict)
    _placed: dict[str, tuple[str, float]] = field(default_factory=dict)
    _asked_s: dict[str, float] = field(default_factory=dict)
    _homeless: dict[str, tuple[str, float]] = field(default_factory=dict)
    _awaited: dict[str, _Awaited] = field(default_factory=dict)
    _shed: dict[str, tuple[str, float]] = field(default_factory=dict)
    _refusals: dict[str, NoBroker] = field(default_factory=dict)
    _default: FewestBundles = field(default_factory=FewestBundles)

    def choose(self, bundle: str, candidates: Sequence[str], load: Mapping[str, int]) -> str | None:
        """A broker for the bundle; None also if the leader was asked: it will assign the bundle."""
        self._refusals.pop(bundle, None)
        try:
            note = self._choose(bundle, candidates, load)
        except Exception as error:
            note = self._rescued(bundle, candidates, load, error)
        if note is None:
            return None
        if note.broker is not None:
            self._book(note.broker, bundle)
        self._note(note)
        self._refuse(note)
        return note.broker

    def refusal(self, bundle: str) -> NoBroker | None:
        return self._refusals.get(bundle)

    def _refuse(self, note: PlacedNote) -> None:
        if note.broker is not None or note.how == "asked" or note.reason == _NO_BROKERS:
            return  # of the last, the engine itself knows why it offers none: brokers are away, or have declined the bundle
        message = _FAILED if note.placed is None else note.placed.why
        removed = {} if note.placed is None else note.placed.removed
        remember(
            self._refusals,
            note.bundle,
            NoBroker(note.reason, message, note.how == "nobody" and _kept_out(removed), _cause(note, removed)),
            self.settings().placements_noted_max,
        )

    def forget(self) -> None:
        """Rebuild the inputs at the next choice, after a change of policies for example."""
        self._next_s = float("-inf")

    def shed(self, bundle: str, source: str) -> None:
        """Remember the source of a bundle that the balancer unloads, so that it is not placed there again."""
        self._shed.pop(bundle, None)
        self._shed[bundle] = source, self.now_s()
        if len(self._shed) > self.settings().placements_noted_max:
            del self._shed[next(iter(self._shed))]

    def assigned(self, bundle: str, served_by: str | None = None) -> None:
        """Take note of an assignment: the next placement of the bundle is a new one.

        Args:
            served_by: The broker that has it now; None while it is in flight.
        """
        self._asked_s.pop(bundle, None)
        self._homeless.pop(bundle, None)
        if served_by is not None:
            self._shed.pop(bundle, None)
        awaited = None if served_by is None else self._awaited.pop(bundle, None)
        if awaited is None or awaited.note.broker not in (None, served_by):
            return
        now_s = self.now_s()
        # A broker that was not chosen here is the leader's choice, if it was asked; else another broker's.
        chosen = awaited.note.broker is not None or awaited.note.how == "asked"
        if chosen and now_s - awaited.last_s <= self.settings().placement_booked_s:
            self.ends.append(PlacedEnd(awaited.note.how, awaited.note.reason, now_s - awaited.first_s))
            _shorten(self.ends, self.settings().placements_noted_max)

    def take_notes(self) -> Sequence[PlacedNote]:
        """Choices since the last call, at most the newest `noted_max`."""
        notes, self.notes = self.notes, []
        return notes

    def take_ends(self) -> Sequence[PlacedEnd]:
        """Confirmed placements since the last call, likewise."""
        ends, self.ends = self.ends, []
        return ends

    def _choose(self, bundle: str, candidates: Sequence[str], load: Mapping[str, int]) -> PlacedNote | None:
        at = self._surroundings()
        if not at.known:
            unread = Placed(bundle, None, "the policies were not read yet")
            return PlacedNote(bundle, None, "unread", unread, "policies-unread")
        if at.modular and not at.leading and not self.held(bundle) and not self._waited(bundle):
            return None
        cluster = at.cluster
        known = cluster.bundles.get(bundle) or Bundle(bundle)
        pipeline, how = self.pipeline(), "strategy"
        candidates = self._relieving(pipeline, cluster, known, candidates)
        try:
            placed = pipeline.place(cluster, known, self._booked, candidates)
            self.failing = ""
        except StrategyFailedError as error:
            self._fails(error)
            placed, how = Placed(bundle, None, str(error)), "failed"
        if placed.broker is not None:
            return PlacedNote(bundle, placed.broker, how, placed, pipeline.name)
        passed = pipeline.filters(cluster, self._booked).passed(known, candidates)
        if not passed.names:
            return PlacedNote(bundle, None, "nobody", placed, _most(passed.removed))
        how, reason = ("fewest", "undecided") if how == "strategy" else (how, "strategy-failed")
        return PlacedNote(bundle, self._default.choose(bundle, passed.names, load), how, placed, reason)

    def _relieving(
        self, pipeline: Pipeline, cluster: Cluster, bundle: Bundle, candidates: Sequence[str]
    ) -> Sequence[str]:
        """The candidates for a bundle that was shed, as far as the filters leave any.

        First those that end below its source's load, by usable reports; else all except the source; else all: an
        unserved bundle is worse than one that has come back.
        """
        source, since_s = self._shed.get(bundle.name, ("", 0.0))
        if not source or self.now_s() - since_s > self.settings().placement_booked_s:
            return candidates
        open_to, _ = Takers(cluster, pipeline.settings.taker_max_age_s).open_to(bundle, source)
        for narrowed in (
            [name for name in candidates if name in set(open_to)],
            [name for name in candidates if name != source],
        ):
            if narrowed and pipeline.filters(cluster, self._booked).passed(bundle, narrowed).names:
                return narrowed
        return candidates

    def _rescued(self, bundle: str, candidates: Sequence[str], load: Mapping[str, int], error: Exception) -> PlacedNote:
        """The choice after an error: without policies the fewest bundles decide; with policies none, as they may forbid it."""
        self._fails(error)
        without_policies = self._at is not None and self._at.known and self._at.cluster.policies == Policies()
        broker = self._default.choose(bundle, candidates, load) if without_policies else None
        return PlacedNote(bundle, broker, "failed", None, "internal-error")

    def _fails(self, error: Exception) -> None:
        """Log an error once while it repeats: placements come in storms."""
        if repr(error) != self.failing:
            self.failing = repr(error)
            _log.error("placement-failed", exc_info=error)

    def _note(self, note: PlacedNote) -> None:
        self.counts[note.how] += 1
        self._await(note)
        if note.broker is not None:
            self._homeless.pop(note.bundle, None)
        elif note.how != "asked" and not self._is_news(note):
            return
        self.notes.append(note)
        _shorten(self.notes, self.settings().placements_noted_max)

    def _await(self, note: PlacedNote) -> None:
        now_s, settings = self.now_s(), self.settings()
        before = self._awaited.pop(note.bundle, None)
        again = before is not None and now_s - before.last_s <= settings.placement_booked_s
        self._awaited[note.bundle] = _Awaited(before.first_s if before is not None and again else now_s, now_s, note)
        if len(self._awaited) > settings.placements_noted_max:
            del self._awaited[next(iter(self._awaited))]

    def _is_news(self, note: PlacedNote) -> bool:
        """Whether a failed placement is to be recorded: it is repeated many times, and recorded once in a while."""
        now_s = self.now_s()
        how, noted_s = self._homeless.get(note.bundle, ("", float("-inf")))
        if how == note.how and now_s - noted_s < self.settings().homeless_again_s:
            return False
        self._homeless.pop(note.bundle, None)
        self._homeless[note.bundle] = note.how, now_s
        if len(self._homeless) > self.settings().placements_noted_max:
            del self._homeless[next(iter(self._homeless))]
        return True

    # --- inputs ----------------------------------------------------------------------------------------------------

    def _surroundings(self) -> PlacementInputs:
        now_s = self.now_s()
        if self._at is not None and now_s < self._next_s:
            return self._at
        at = self._at = self.surroundings()
        self._keep_bookings(at.cluster, now_s)
        wait_s = self.settings().leader_wait_s
        for name in [name for name, asked_s in self._asked_s.items() if now_s - asked_s > 4 * wait_s]:
            del self._asked_s[name]
        self._next_s = now_s + max(self.settings().placement_refresh_s, PRICE * (self.now_s() - now_s))
        return at

    def _book(self, broker: str, bundle: str) -> None:
        before = self._placed.get(bundle)
        if before is not None and bundle in self._booked.get(before[0], ()):
            self._booked[before[0]].remove(bundle)
        self._placed[bundle] = broker, self.now_s()
        self._booked.setdefault(broker, []).append(bundle)

    def _keep_bookings(self, cluster: Cluster, now_s: float) -> None:
        """Keep bookings until a report made afterwards is not stale, or for a while if none comes."""
        booked: dict[str, list[str]] = {}
        booked_s = self.settings().placement_booked_s
        for bundle, (broker, placed_s) in list(self._placed.items()):
            seen = cluster.brokers.get(broker)
            # A stale report may be younger than the placement and not count it yet: figures take a moment to show it.
            counts = seen is not None and seen.load is not None and not seen.load_lapsed
            reported = counts and seen is not None and now_s - seen.load_age_s >= placed_s
            if seen is None or reported or now_s - placed_s > booked_s:
                del self._placed[bundle]
            else:
                booked.setdefault(broker, []).append(bundle)
        self._booked = booked

    def _waited(self, bundle: str) -> bool:
        """Whether the wait for the leader is over; asks it first."""
        now_s = self.now_s()
        asked_s = self._asked_s.get(bundle)
        if asked_s is not None:
            return now_s - asked_s >= self.settings().leader_wait_s
        if len(self._asked_s) >= self.settings().leader_asks_max:
            return True
        self.ask_leader(bundle)
        self._asked_s[bundle] = now_s
        self._note(PlacedNote(bundle, None, "asked", None, "modular"))
        return False


def _most(removed: Mapping[str, tuple[str, str]]) -> str:
    counts = Counter(name for name, _ in removed.values() if name != OFFERED)
    return min(counts, key=lambda name: (-counts[name], name)) if counts else _NO_BROKERS


def _cause(note: PlacedNote, removed: Mapping[str, tuple[str, str]]) -> UnplacedCause:
    if note.how != "nobody":
        return UnplacedCause.FAILURE
    words = {word for word, _ in removed.values()}
    return UnplacedCause.LIMITS if words.isdisjoint(_ORDERS) else UnplacedCause.POLICIES


def _kept_out(removed: Mapping[str, tuple[str, str]]) -> bool:
    """Whether a cordon keeps out a broker that would do, and no other one may come: only an operator can change it."""
    words = {word for word, _ in removed.values()}
    return _CORDON in words and words <= _ORDERS


def _shorten(entries: list[Any], longest: int) -> None:
    if len(entries) > longest:
        del entries[: len(entries) - longest // 2]


BATCH_MAX = 200  # placements per record: as many as fit with their reasons

_REMARKS = {
    "fewest": "the strategy chose no broker; of those that the filters left, the one with the fewest bundles took it",
    "failed": "the placement failed (see the broker's log); the broker with the fewest bundles took it",
}


class PlacementRecorder:
    """Recorder of placements. In the loop's thread.

    Args:
        take_notes: Placements since the last call; `take_ends`: those confirmed since.
    """

    def __init__(
        self,
        ports: Ports,
        *,
        take_notes: Callable[[], Sequence[PlacedNote]],
        take_ends: Callable[[], Sequence[PlacedEnd]],
        counts: Callable[[], WriteCounts],
    ) -> None:
        self._ports = ports
        self._take_notes = take_notes
        self._take_ends = take_ends
        self._counts = counts
        self._batches = 0
        self._fingerprint = ""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._ports.settings().placements_told_every_s)
            self.record()

    def record(self) -> None:
        notes = self._take_notes()
        for note in notes:
            self._ports.metrics.assigned(note.how, note.reason)
        for end in self._take_ends():
            self._ports.metrics.assigned_after(end.how, end.reason, end.took_s)
        placed = [_placed(note) for note in notes if note.how != "asked"]
        for start in range(0, len(placed), BATCH_MAX):
            self._write(placed[start : start + BATCH_MAX])
        self._ports.metrics.written(self._counts())

    def _write(self, placed: Sequence[Placed]) -> None:
        ports, chosen = self._ports, self._ports.chosen()
        self._batches += 1
        settings = chosen.settings_json("placement", "filters")
        new, self._fingerprint = repr(settings) != self._fingerprint, repr(settings)
        occasion = Occasion(
            id=str(ULID()),
            term=max(0, ports.channel.term),
            leader=ports.channel.identity.broker,
            cycle=self._batches,
            at_ms=ports.clocks.log_ms(),
            inputs=ports.inputs(None),
            strategy=chosen.names["placement"],
            profile=chosen.profile,
            settings=settings,
            write_settings=new,
            manager=ports.manager(),
            trigger="request",
        )
        # The record's brokers matter only for entries left alone; here there are none.
        record = place_record(occasion, Cluster({}, {}), placed, bounds=ports.bounds)
        ports.write(record)
        ports.metrics.decided(record)


_FAILED = "the placement failed (see the broker's log); no broker took it, as policies could not be checked"


def _placed(note: PlacedNote) -> Placed:
    """The strategy's answer, with the broker that the bundle finally went to."""
    remark = _FAILED if note.how == "failed" and note.broker is None else _REMARKS.get(note.how)
    if note.placed is None:
        return Placed(note.bundle, note.broker, remark or note.how)
    if remark is None:
        return note.placed
    return replace(note.placed, broker=note.broker, why=f"{note.placed.why}; {remark}")
