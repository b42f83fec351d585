"""Ports of the balancer's parts: their inputs and outputs, and the check whether moves are allowed now."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from shedders.balancer.cluster_inputs import BundleCache, ClusterInputs, cluster_now
from shedders.decisions.builder import RecordBounds, outcome_record

if TYPE_CHECKING:
    from shedders.balancer.active_strategies import ActiveStrategies
    from shedders.balancer.clocks import LiveClocks
    from shedders.balancer.metrics import BalancerMetrics
    from shedders.balancer.movers import EndedMove
    from shedders.balancer.settings import BalancerSettings
    from shedders.decisions.record import AnyRecord, DecisionRecord, Inputs
    from shedders.model.cluster import Cluster
    from shedders.model.plan import Left
    from shedders.policies.effective import EffectivePolicies
    from statechannel.api.member import ChannelMember
    from statechannel.engine.cluster_view import ClusterView


class Ending(Protocol):
    """How a move or a split ended."""

    @property
    def operation(self) -> str:
        """Operation id of its request."""
        ...

    @property
    def result(self) -> str:
        """Stable code."""
        ...

    @property
    def why(self) -> str:
        """Sentence for people."""
        ...

    @property
    def took_s(self) -> float:
        """From its start to its end."""
        ...


def _nothing() -> None:
    return None


@dataclass(frozen=True, slots=True)
class Ports:
    """The dependencies of a balancer.

    Attributes:
        standing: The policies in effect; None before they were read.
        known: Inputs in addition to the channel's view.
        chosen: The strategies in force.
        inputs: How far each log was read.
        write: Writes a decision record; never waits.
        recall: The newest decision of any leader from which the next continues; None if there is none. It may
            raise: then the leader starts without memory.
        unusable: Why the policies in effect cannot be used; None if they can.
        kept: Cache of bundles from earlier clusters.
        contradictions: Contradictions among the policies, for the records.
    """

    channel: ChannelMember
    standing: Callable[[], EffectivePolicies | None]
    known: Callable[[], ClusterInputs]
    chosen: Callable[[], ActiveStrategies]
    inputs: Callable[[ClusterView | None], Inputs]
    write: Callable[[AnyRecord], object]
    recall: Callable[[], Awaitable[DecisionRecord | None]]
    metrics: BalancerMetrics
    clocks: LiveClocks
    unusable: Callable[[], str | None] = _nothing
    kept: BundleCache = field(default_factory=BundleCache)
    contradictions: Callable[[], Sequence[Left]] = tuple

    def cluster(self, picture: ClusterView) -> Cluster:
        """The cluster as strategies see it now."""
        return cluster_now(picture, self.known(), self.clocks.log_ms(), kept=self.kept)


def forbidden(ports: Ports, settings: BalancerSettings) -> tuple[str, str] | None:
    """Why no bundle may be moved: a stable word and a sentence. Checked again when the turn of a move comes."""
    effective, unusable = ports.standing(), ports.unusable()
    if effective is None:
        return "policies-unread", "the policies have not been read to their end yet"
    if unusable is not None:
        return "unusable-policies", unusable
    if not settings.balancing:
        return "shedding-off", "extensions.balancer.balancing is false on this broker"
    if not effective.shedding_on:
        return "shedding-off", effective.shedding_why
    return None


def record_move_end(ports: Ports, decision_id: str, ended: EndedMove, term: int, bounds: RecordBounds) -> None:
    """Count the end of a move, and record it."""
    ports.metrics.shed(ended.result, ended.move.reason.value, ended.took_s)
    write_end(ports, decision_id, ended.move.bundle, ended, term, bounds)


def write_end(ports: Ports, decision_id: str, bundle: str, ended: Ending, term: int, bounds: RecordBounds) -> None:
    """Record the end of a move or a split."""
    ports.write(
        outcome_record(
            decision_id,
            bundle,
            ended.result,
            ended.why,
            operation=ended.operation,
            at_ms=ports.clocks.log_ms(),
            term=term,
            leader=ports.channel.identity.broker,
            took_ms=ended.took_s * 1_000,
            bounds=bounds,
        )
    )
