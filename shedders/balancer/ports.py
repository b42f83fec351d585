"""What the parts of a balancer share: what they read, where they write, and whether moves are allowed now."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from shedders.balancer.cluster_inputs import ClusterInputs, Kept, cluster_now
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
    """What a balancer is put together from.

    Attributes:
        standing: The policies; None before they were read.
        known: What is known beside the channel's picture.
        chosen: The strategies in force.
        inputs: How far each log was read.
        write: Writes a decision record down; never waits.
        recall: The newest decision that any leader wrote down and that the next goes on from; None where there is none. It may
            raise: then the leader begins without memory.
        unusable: Why the policies in force cannot be used as they stand; None if they can.
        kept: Of the clusters before.
        contradictions: Policies that cannot be kept as they stand, for the records.
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
    kept: Kept = field(default_factory=Kept)
    contradictions: Callable[[], Sequence[Left]] = tuple

    def cluster(self, picture: ClusterView) -> Cluster:
        """The cluster as strategies see it now."""
        return cluster_now(picture, self.known(), self.clocks.log_ms(), kept=self.kept)


def forbidden(ports: Ports, settings: BalancerSettings) -> tuple[str, str] | None:
    """Why nothing is to be moved: a stable word and a sentence. Asked again when the turn of a move comes."""
    standing, unusable = ports.standing(), ports.unusable()
    if standing is None:
        return "policies-unread", "the policies have not been read to their end yet"
    if unusable is not None:
        return "unusable-policies", unusable
    if not settings.balancing:
        return "shedding-off", "extensions.balancer.balancing is false on this broker"
    if not standing.shedding_on:
        return "shedding-off", standing.shedding_why
    return None


def tell_end(ports: Ports, decision_id: str, ended: EndedMove, term: int, bounds: RecordBounds) -> None:
    """Count how a move ended, and write it down."""
    ports.metrics.shed(ended.result, ended.move.reason.value, ended.took_s)
    write_end(ports, decision_id, ended.move.bundle, ended, term, bounds)


def write_end(ports: Ports, decision_id: str, bundle: str, ended: Ending, term: int, bounds: RecordBounds) -> None:
    """Write down how a move or a split ended."""
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
