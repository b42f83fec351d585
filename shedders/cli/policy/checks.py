"""Checks of a policy before it is written or deleted: contradictions with other policies, and oddities. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from shedders.model.amounts import are, count
from shedders.model.cluster import Cluster, IsolationPolicy
from shedders.model.patterns import compiled
from shedders.policies.contradictions import Contradiction
from shedders.policies.effective import EffectivePolicies
from shedders.policies.kinds import PolicyKind
from shedders.policies.record import PolicyKey
from statechannel.cli.kit.failures import CommandError
from statechannel.errors import ExitCode

_OF_THE_CLUSTER: Final = frozenset(
    {PolicyKind.ISOLATION, PolicyKind.ANTI_AFFINITY, PolicyKind.DOMAIN, PolicyKind.PIN, PolicyKind.CORDON}
)


class PolicyChecks(NamedTuple):
    """Sentences on a policy before it is written or deleted.

    Attributes:
        troubles: Contradictions that the change causes.
        notes: Oddities, and common misunderstandings.
    """

    troubles: Sequence[str] = ()
    notes: Sequence[str] = ()


def matters(key: PolicyKey, *, deleted: bool) -> bool:
    """Whether the change must be checked against the cluster; deleting a cordon restricts nothing."""
    return key.kind in _OF_THE_CLUSTER and not (deleted and key.kind is PolicyKind.CORDON)


def judged(
    key: PolicyKey, before: EffectivePolicies, after: EffectivePolicies, cluster: Cluster, *, deleted: bool, force: bool
) -> PolicyChecks:
    """Contradictions and oddities that the change causes.

    Raises:
        CommandError: Bundles would get no broker, and `force` is not set.
    """
    if not cluster.brokers:
        return PolicyChecks(["no broker is alive, so these policies cannot be checked for contradictions"])
    known = {(contradiction.kind, contradiction.policies) for contradiction in before.contradictions(cluster)}
    new = [
        contradiction
        for contradiction in after.contradictions(cluster)
        if (contradiction.kind, contradiction.policies) not in known
    ]
    # That no broker may take a bundle follows from the other contradictions, so these come first.
    blocking = sorted(
        (contradiction for contradiction in new if contradiction.blocks),
        key=lambda contradiction: contradiction.kind == "nobody",
    )
    if blocking and not force:
        more = f"; and {len(blocking) - 1} more" if len(blocking) > 1 else ""
        raise CommandError(
            f"the remaining policies contradict each other: {sentence(blocking[0])}{more}"
            if deleted
            else f"these policies contradict each other: {sentence(blocking[0])}{more}",
            hint=f"Change or delete one of them{' first' if deleted else ''}; --force "
            f"{'deletes' if deleted else 'writes'} it anyway, and the blocked bundles get no broker.",
            code=ExitCode.REJECTED,
        )
    return PolicyChecks(
        [sentence(contradiction) for contradiction in new], [] if deleted else list(_odd(key, after, cluster))
    )


def sentence(contradiction: Contradiction) -> str:
    """Names of the policies, and the reason."""
    return f"{', '.join(contradiction.policies)}: {contradiction.why}"


def _odd(key: PolicyKey, after: EffectivePolicies, cluster: Cluster) -> Iterator[str]:
    if key.kind is PolicyKind.ISOLATION:
        every = after.policies.isolation
        at = next((number for number, policy in enumerate(every) if policy.name == key.name), None)
        if at is not None:
            yield from _unmatched(every[at], cluster)
            yield from _shadowed(every, at)

    if key.kind is PolicyKind.PIN:
        yield from _elsewhere(key.name, after.policies.pins, cluster)


def _elsewhere(name: str, pins: Mapping[str, str], cluster: Cluster) -> Iterator[str]:
    """Note on bundles that are served by another broker than the pinned one: a pin does not move them."""
    broker = pins.get(name)
    held = [name] if name in cluster.bundles else [bundle.name for bundle in cluster.bundles_in.get(name, ())]
    # A bundle's own pin takes precedence over that of its namespace.
    away = [
        bundle
        for bundle in sorted(held)
        if cluster.bundles[bundle].owner not in (None, broker) and (bundle == name or bundle not in pins)
    ]
    if broker is None or not away:
        return
    where = (
        f"it is on {cluster.bundles[name].owner}"
        if away == [name]
        else f"{count(len(away), 'bundle')} of it {are(len(away))} on another broker"
    )
    yield (
        f"{where}; a pin does not move bundles; use statechannel transfer "
        f"{away[0] if away == [name] else 'BUNDLE'} --dest {broker}"
    )


def _unmatched(policy: IsolationPolicy, cluster: Cluster) -> Iterator[str]:
    """Notes on patterns that no broker matches, as namespaces that come later would get no broker."""
    for part, texts in (("primary", policy.primary), ("secondary", policy.secondary)):
        patterns = compiled(texts)
        if not texts or isinstance(patterns, str):
            continue
        if not any(patterns.matches(broker.address) for broker in cluster.brokers.values()):
            yield f"no known broker matches {part}={','.join(map(str, texts))} of isolation {policy.name}"


def _shadowed(every: Sequence[IsolationPolicy], at: int) -> Iterator[str]:
    """Notes on policies without effect, as an earlier one has all their patterns of namespaces."""
    for first, policy in enumerate(every):
        for second in range(first + 1, len(every)):
            hidden = every[second]
            if at in (first, second) and hidden.namespaces and set(hidden.namespaces) <= set(policy.namespaces):
                yield (
                    f"isolation {hidden.name} is never used: isolation {policy.name} comes before it and has the same "
                    "namespaces"
                )
