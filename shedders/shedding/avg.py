"""AvgShedder: pairs the most with the least loaded broker, and levels the load of each pair.

With the setting `upstream` planned destinations are remembered exactly as Pulsar 4.2.4 does (`UpstreamPlans`):

* Planned destinations are kept by the *value* of a bundle's data (both averages and the number of topics): bundles with equal
  data share one, the last one that was planned. They are never forgotten (only here, beyond `MOST`).
* Without one (or if it is not a candidate) a bundle goes to any candidate, and that is remembered as its destination.
* A sole bundle goes if it fits; hits are lost though nothing moves; hits of brokers that left stay; with a low threshold of 0
  the broker in the middle is paired with itself.
* Of brokers with equal scores, and bundles with equal traffic, upstream's hash map decides which comes first, here the name; so
  upstream may give any order of the equals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from pydantic import Field

from loaddata.model.bundle_load import MessageAverage
from shedders.model.candidates import CandidateReader, Projection, blind, pick, unplaced
from shedders.model.cluster import Bundle, Cluster
from shedders.model.plan import Placed, Plan, Reason
from shedders.model.readings import SheddingSettings, UsageSettings, may_receive
from shedders.model.strategy import CanTake, StrategySettings
from shedders.shedding.draft import Draft, LoadToGive, Measure, bytes_of, messages_of, unit_of

MOST = 10_000
"""Maximum number of remembered destinations; beyond it those that no bundle of the cluster uses are forgotten."""


class UpstreamPlans:
    """Destinations by the value of bundles' data.

    Args:
        memory: As `as_memory` gave it.
    """

    def __init__(self, memory: Any) -> None:
        table = memory if isinstance(memory, Mapping) else {}
        self._wanted = {str(key): str(broker) for key, broker in table.items()}

    def put(self, bundle: Bundle, broker: str) -> None:
        """Plan a bundle and all that are equal to it."""
        self._wanted[_value(bundle)] = broker

    def name_destinations(self, draft: Draft) -> None:
        bundles = draft.cluster.bundles
        draft.moves = [
            replace(move, destination=self._wanted.get(_value(bundles[move.bundle]), move.destination))
            for move in draft.moves
        ]

    def place(self, bundle: Bundle, candidates: Sequence[str], memory: Mapping[str, Any]) -> Placed:
        """Place on the planned broker; else on any candidate, which becomes the planned one."""
        if not candidates:
            return unplaced(bundle, memory)
        best = sorted(candidates)
        wanted = self._wanted.get(_value(bundle))
        if wanted in best:
            return Placed(bundle.name, wanted, "it is planned to go there", (wanted,), memory=memory)
        broker = pick(bundle.name, best)
        self.put(bundle, broker)
        why = f"no plan for it: any of {len(best)}"
        remembered = {**memory, "plan": dict(sorted(self._wanted.items()))}
        return Placed(bundle.name, broker, why, best, memory=remembered)

    def as_memory(self, cluster: Cluster) -> dict[str, str]:
        if len(self._wanted) > MOST:
            values = {_value(bundle) for bundle in cluster.bundles.values()}
            return {value: broker for value, broker in self._wanted.items() if value in values}
        return self._wanted


def _value(bundle: Bundle) -> str:
    topics = len(bundle.topics) if bundle.stats is None else bundle.stats.topics
    return f"{_figures(bundle.averages.short)}/{_figures(bundle.averages.long)}/{topics}"


def _figures(average: MessageAverage) -> str:
    # Adding 0 makes one zero of the two, which are equal as dataclass fields.
    figures = (average.msg_rate_in, average.msg_rate_out, average.msg_throughput_in, average.msg_throughput_out)
    return ",".join(repr(figure + 0.0) for figure in figures) + f",{average.samples}"


HALF = 0.5  # the share that levels a pair; more would reverse the difference
_MOST_HITS = 1_000_000


class AvgSettings(UsageSettings, SheddingSettings):
    low_threshold: float = Field(
        default=15.0,
        ge=0,
        description="Minimum difference of a pair, in points, for it to count (loadBalancerAvgShedderLowThreshold).",
    )
    high_threshold: float = Field(
        default=40.0,
        ge=0,
        description="Minimum difference of a pair, in points, to count as urgent (loadBalancerAvgShedderHighThreshold).",
    )
    hit_count_low: int = Field(
        default=8,
        ge=0,
        description="Number of hits in a row before bundles of a pair move (loadBalancerAvgShedderHitCountLowThreshold).",
    )
    hit_count_high: int = Field(
        default=2, ge=0, description="The same for urgent pairs (loadBalancerAvgShedderHitCountHighThreshold)."
    )
    min_unload_msg_per_s: int = Field(
        default=1000, ge=0, description="This message rate or less is not worth moving (minUnloadMessage)."
    )
    min_unload_bytes_per_s: int = Field(
        default=1024 * 1024,
        ge=0,
        description="This throughput or less, in bytes a second, is not worth moving (minUnloadMessageThroughput).",
    )
    max_unload_share: float = Field(
        default=0.2,
        ge=0,
        le=1,
        description="Part of the difference that is moved; 0.5 levels the pair, and more counts as 0.5 "
        "(maxUnloadPercentage; upstream takes it as it is, and advises 0.5).",
    )


class AvgShedder:
    """Pairs the most with the least loaded broker, the second with the second, and levels each pair that stays apart.

    - Score: weighted maximum of CPU, direct memory and bandwidths, in points of 100. Brokers in the order of their scores are
      paired from both ends; one in the middle stays alone.
    - A pair that is apart by `low_threshold` counts one hit for both its brokers, from `high_threshold` on an urgent one as
      well; below, both lose theirs. With enough hits of either kind on either broker the pair acts.
    - It moves (max - min) * min(`max_unload_share`, 0.5) of the messages if that is more than the floor, else of the bytes:
      bundles that fit, the heaviest first, each only if the receiver ends below the giver's present load, in score
      and in traffic. Then both lose their hits; if nothing can go they keep them.

    Example (also a test): scores 80, 60, 45, 20; pairs (80, 20) and (60, 45), apart by 60 and 15; the first is urgent. The
    second time it acts: 50,000 messages/s against 10,000 give 40,000 * 0.2 = 8,000. Of bundles with 30,000, 15,000, 4,000
    and 1,000 those with 4,000 and 1,000 go. 3,000 are missing, more than the floor of 1,000, and the smallest larger bundle
    has 15,000. In traffic it may: 10,000 + 5,000 + 15,000 < 45,000. In score as well: a message weighs 80 / 50,000 points, and
    20 + 20,000 * 0.0016 = 52 < 80 - 5,000 * 0.0016 = 72. So it goes as well. With `upstream` the first two.

    Placement: on the planned broker, if that may take the bundle; else on the least loaded, with the bundles in flight added
    (`shedders.model.candidates`).

    Words for brokers left alone: `not-apart`, `hit-count`, `little-traffic`, `sole-bundle` (or none), `nothing-fits`,
    `not-accepting`; and those of `shedders.shedding.draft`.

    `upstream`: see `shedders.shedding.avg`. Source: `AvgShedder` of Pulsar 4.2.4, PIP-364; corrections:
    design/decisions/0029.

    Args:
        can_take: Filters; without it every broker may take every bundle.
    """

    name: ClassVar[str] = "avg"
    Settings: ClassVar[type[StrategySettings]] = AvgSettings

    def __init__(self, settings: AvgSettings, can_take: CanTake | None = None) -> None:
        self.settings = settings
        self._can_take = can_take
        self._reader = CandidateReader(settings, settings.weights)
        self._projection: tuple[Cluster, Projection] | None = None

    def plan(self, cluster: Cluster, memory: Mapping[str, Any]) -> Plan:
        """Decide once; remembers hits by broker and planned destinations by bundle."""
        settings = self.settings
        draft = Draft(self.name, cluster, settings, memory, settings.weights, self._can_take)
        if draft.stopped is not None:
            return draft.stopped
        scores = draft.scores = {name: usage * 100 for name, usage in draft.usages.items()}
        hits = Hits(memory, cluster.brokers if not settings.upstream else None)
        names = sorted(scores, key=lambda name: scores[name])
        pairs = self._pairs(draft, names, hits)
        draft.stats.update(pairs=float(len(pairs)))
        if not pairs:
            hits.clear()
        ready = [pair for pair in pairs if hits.enough(pair, settings)]
        for pair in pairs:
            if pair not in ready:
                draft.leave(pair[1], "hit-count", f"{_scores_text(draft, pair)}; hits: {hits.text(pair)}")
        if settings.upstream:
            planned = UpstreamPlans(memory.get("plan"))
            for pair in ready:
                hits.drop(pair)
                self._level_as_upstream(draft, pair, planned)
            planned.name_destinations(draft)
            plan = planned.as_memory(cluster)
        else:
            for pair in ready:
                if self._level(draft, pair):
                    hits.drop(pair)
            plan = draft.planned
        draft.memory = {**hits.as_memory(), "plan": dict(sorted(plan.items()))}
        if ready:
            return draft.plan(f"{len(ready)} pairs are apart, nothing can go", Reason.NO_BUNDLES)
        return draft.plan(f"{len(pairs)} pairs are apart, none often enough", Reason.HIT_COUNT)

    def place(
        self,
        cluster: Cluster,
        bundle: Bundle,
        candidates: Sequence[str],
        booked: Mapping[str, Sequence[str]],
        memory: Mapping[str, Any],
    ) -> Placed:
        """Choose the broker that the plan in `memory` has for it, else see the class.

        With `upstream` all candidates are equal, and the choice is remembered as the plan.
        """
        if self.settings.upstream:
            return UpstreamPlans(memory.get("plan")).place(bundle, candidates, memory)
        plan = memory.get("plan")
        wanted = plan.get(bundle.name) if isinstance(plan, Mapping) else None
        if wanted is not None and wanted in candidates:
            return Placed(bundle.name, wanted, "it is planned to go there", (wanted,), memory=memory)
        known = self._reader.of(cluster)
        names, removed = known.judged(candidates)
        if not names:
            return blind(cluster, bundle, candidates, booked, removed, memory)
        if self._projection is None or self._projection[0] is not cluster:
            self._projection = (cluster, Projection(cluster, known.loads, known.usages))
        projection = self._projection[1]
        scores = projection.of(names, booked)
        least = min(scores.values())
        best = [name for name, score in scores.items() if score == least]
        chosen = pick(bundle.name, best)
        why = f"no plan for it; {chosen} is the least loaded of {len(scores)} ({least * 100:.0f} %, including bundles in flight)"
        why += known.remark(names)
        return Placed(bundle.name, chosen, why, best, removed, scores, memory)

    def _pairs(self, draft: Draft, names: Sequence[str], hits: Hits) -> list[tuple[str, str]]:
        """Pairs (least, most) loaded, from both ends inwards, if they are apart."""
        pairs: list[tuple[str, str]] = []
        scores, settings = draft.scores, self.settings
        # Upstream pairs the one in the middle with itself: it always loses its hits, unless the threshold is 0.
        for i in range((len(names) + 1) // 2):
            pair = (names[i], names[len(names) - 1 - i])
            apart = scores[pair[1]] - scores[pair[0]]
            if apart < settings.low_threshold or (pair[0] == pair[1] and not settings.upstream):
                hits.drop(pair)
                draft.leave(pair[1], "not-apart", _scores_text(draft, pair))
            else:
                pairs.append(pair)
                hits.count(pair, urgent=not apart < settings.high_threshold)
        return pairs

    def _level(self, draft: Draft, pair: tuple[str, str]) -> bool:
        low, high = pair
        scores_text = _scores_text(draft, pair)
        if not may_receive(draft.cluster, low):
            draft.leave(low, "not-accepting", f"{scores_text}, but {low} takes no bundles")
            return False
        if draft.size(high) <= 1:
            draft.leave(high, "sole-bundle", f"{scores_text}, but {draft.size(high)} bundles")
            return False
        share = min(self.settings.max_unload_share, HALF)
        floors: tuple[tuple[Measure, int], ...] = (
            (messages_of, self.settings.min_unload_msg_per_s),
            (bytes_of, self.settings.min_unload_bytes_per_s),
        )
        for measure, floor in floors:
            apart = measure(draft.loads[high]) - measure(draft.loads[low])
            if apart * share > floor:
                # In traffic and in score: the narrower of the two gaps decides, in traffic. (A score of 0 has no gap.)
                points = draft.scores[high] - draft.scores[low]
                gap = min(apart, points * draft.total(high, measure) / draft.scores[high]) if points > 0 else 0.0
                need = LoadToGive(high, min(apart * share, gap), floor, gap, 1.0)
                return draft.relieve(need, measure, draft.receivers({low: 0.0}, ()), Reason.OVERLOADED, scores_text)
        draft.leave(high, "little-traffic", f"{scores_text}, but not enough traffic between them")
        return False

    def _level_as_upstream(self, draft: Draft, pair: tuple[str, str], planned: UpstreamPlans) -> None:
        low, high = (draft.loads[name] for name in pair)
        share = self.settings.max_unload_share
        floors: tuple[tuple[Measure, int], ...] = (
            (messages_of, self.settings.min_unload_msg_per_s),
            (bytes_of, self.settings.min_unload_bytes_per_s),
        )
        for measure, floor in floors:
            quota = (measure(high) - measure(low)) * share
            if not quota > floor:
                continue
            for bundle, weight in draft.weighed(pair[1], measure):
                if 0 < weight <= quota:
                    why = f"{_scores_text(draft, pair)}; this is {weight:.6g} of {quota:.6g} that are left to give"
                    draft.move(bundle, pair[1], Reason.OVERLOADED, weight, why, pair[0], unit_of(measure))
                    planned.put(bundle, pair[0])
                    quota -= weight
            return
        draft.leave(pair[1], "little-traffic", f"{_scores_text(draft, pair)}, but not enough traffic between them")


class Hits:
    """Counts of how often in a row brokers were apart from their partners.

    Args:
        present: Brokers whose hits are kept; None for all.
    """

    def __init__(self, memory: Mapping[str, Any], present: Mapping[str, object] | None) -> None:
        self._low = _counts(memory.get("hits_low"), present)
        self._high = _counts(memory.get("hits_high"), present)

    def count(self, pair: tuple[str, str], *, urgent: bool) -> None:
        """Add a hit to both; one that is not urgent resets the urgent ones."""
        # A broker paired with itself counts twice (upstream).
        for name in pair:
            self._low[name] = min(self._low.get(name, 0) + 1, _MOST_HITS)
            if urgent:
                self._high[name] = min(self._high.get(name, 0) + 1, _MOST_HITS)
            else:
                self._high.pop(name, None)

    def drop(self, pair: tuple[str, str]) -> None:
        for name in pair:
            self._low.pop(name, None)
            self._high.pop(name, None)

    def clear(self) -> None:
        self._low.clear()
        self._high.clear()

    def enough(self, pair: tuple[str, str], settings: AvgSettings) -> bool:
        return any(
            self._high.get(name, 0) >= settings.hit_count_high or self._low.get(name, 0) >= settings.hit_count_low
            for name in pair
        )

    def text(self, pair: tuple[str, str]) -> str:
        return ", ".join(f"{name} {self._low.get(name, 0)} (urgent {self._high.get(name, 0)})" for name in pair)

    def as_memory(self) -> dict[str, Any]:
        return {"hits_high": dict(sorted(self._high.items())), "hits_low": dict(sorted(self._low.items()))}


def _counts(table: Any, present: Mapping[str, object] | None) -> dict[str, int]:
    if not isinstance(table, Mapping):
        return {}
    return {
        str(name): min(count, _MOST_HITS)
        for name, count in table.items()
        if type(count) is int and count > 0 and (present is None or name in present)
    }


def _scores_text(draft: Draft, pair: tuple[str, str]) -> str:
    low, high = pair
    return f"{high} scores {draft.scores[high]:.1f}, {low} {draft.scores[low]:.1f}"
