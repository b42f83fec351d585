"""Isolation policies: which brokers a namespace may use (upstream `NamespaceIsolationPolicies`, `MinAvailablePolicy`).

The first policy one of whose patterns matches the whole namespace counts. Its primaries may take the bundle; if fewer of them
than `min_available` can, so may its secondaries. A namespace without a policy may use shared brokers only: those that are
primary in no policy. An invalid pattern breaks its policy: bundles that depend on it get no broker. Patterns are matched
in linear time (`shedders.model.patterns`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from shedders.model.cluster import Broker, IsolationPolicy
from shedders.model.patterns import Patterns, compiled


@dataclass(frozen=True, slots=True)
class Zone:
    """The brokers that isolation allows for a namespace.

    Attributes:
        policy: Name of its policy; None if none matches, and shared brokers are allowed.
        primary: Brokers it may use; the shared ones where there is no policy.
        secondary: Brokers that help out.
        broken: Why the policy is invalid, with its name; then no broker may take its bundles.
    """

    policy: str | None = None
    primary: frozenset[str] = frozenset()
    secondary: frozenset[str] = frozenset()
    min_available: int = 1
    broken: str | None = None


class Isolation:
    """The policies applied to the registered brokers; answers are cached, as both stay the same for a whole decision.

    What depends on the policies alone is cached as long as the same policies are in use (`_Read`).
    """

    def __init__(self, policies: Sequence[IsolationPolicy], brokers: Mapping[str, Broker]) -> None:
        self._policies = policies
        self._brokers = brokers
        self._zones: dict[str, Zone] = {}
        self._named: dict[int, Zone] = {}

    def zone(self, namespace: str) -> Zone | None:
        """The zone of a namespace; None if there are no policies, so that every broker is allowed."""
        if not self._policies:
            return None
        if namespace not in self._zones:
            self._zones[namespace] = self._find(namespace)
        return self._zones[namespace]

    @cached_property
    def owners(self) -> Mapping[str, str]:
        """The policy of which a broker is a primary, by broker, as far as patterns are valid."""
        owners = ((name, self._read.owner(broker.address)) for name, broker in self._brokers.items())
        return {name: policy for name, policy in owners if policy is not None}

    @cached_property
    def _read(self) -> _Read:
        return _read(self._policies)

    def _find(self, namespace: str) -> Zone:
        index = self._read.first(namespace)
        if index is None:
            return self._shared
        if index not in self._named:
            self._named[index] = self._of(self._policies[index])
        return self._named[index]

    def _of(self, policy: IsolationPolicy) -> Zone:
        for part in ("namespaces", "primary", "secondary"):
            patterns = self._read.patterns(getattr(policy, part))
            if isinstance(patterns, str):
                return _broken(policy, part, patterns)
        if not policy.primary and not policy.secondary:
            return Zone(
                policy.name, broken=f"isolation policy `{policy.name}` names neither primary nor secondary brokers"
            )
        first = self._matching(policy.primary)
        return Zone(policy.name, first, self._matching(policy.secondary) - first, policy.min_available)

    @cached_property
    def _shared(self) -> Zone:
        for policy in self._policies:
            patterns = self._read.patterns(policy.primary)
            if isinstance(patterns, str):
                return _broken(policy, "primary", patterns)
        return Zone(primary=frozenset(self._brokers.keys() - self.owners.keys()))

    def _matching(self, texts: Sequence[Any]) -> frozenset[str]:
        patterns = self._read.patterns(texts)
        if isinstance(patterns, str):
            return frozenset()
        return frozenset(name for name, broker in self._brokers.items() if patterns.matches(broker.address))


class _Read:
    """Policies with their patterns compiled, and a bounded cache of what they match."""

    def __init__(self, policies: Sequence[IsolationPolicy]) -> None:
        self._policies = policies
        self._lists: dict[int, Patterns | str] = {}
        self._firsts: dict[str, int | None] = {}
        self._owners: dict[str, str | None] = {}

    def patterns(self, texts: Sequence[Any]) -> Patterns | str:
        """The compiled patterns of a list in these policies, which must live as long as this."""
        patterns = self._lists.get(id(texts))
        if patterns is None:
            patterns = self._lists[id(texts)] = compiled(texts)
        return patterns

    def first(self, namespace: str) -> int | None:
        """The first policy that matches a namespace, or that may match as it is invalid; None: none does."""
        if namespace not in self._firsts:
            _make_room(self._firsts)
            self._firsts[namespace] = next(
                (
                    number
                    for number, policy in enumerate(self._policies)
                    if self._may_match(policy.namespaces, namespace)
                ),
                None,
            )
        return self._firsts[namespace]

    def owner(self, address: str) -> str | None:
        if address not in self._owners:
            _make_room(self._owners)
            self._owners[address] = next(
                (policy.name for policy in self._policies if self._match(policy.primary, address)), None
            )
        return self._owners[address]

    def _match(self, texts: Sequence[Any], text: str) -> bool:
        patterns = self.patterns(texts)
        return not isinstance(patterns, str) and patterns.matches(text)

    def _may_match(self, texts: Sequence[Any], text: str) -> bool:
        patterns = self.patterns(texts)
        return isinstance(patterns, str) or patterns.matches(text)


_KEPT = 8
"""Sets of policies that are kept compiled: those in force, as configured cluster by cluster, and those of a plan or two."""
_ANSWERS_MAX = 100_000


class _Same:
    """Policies are the same only if they are the same object: to compare all patterns takes longer than to match them."""

    __slots__ = ("policies",)

    def __init__(self, policies: Sequence[IsolationPolicy]) -> None:
        self.policies = policies

    def __hash__(self) -> int:
        return id(self.policies)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.policies is other.policies


@lru_cache(maxsize=_KEPT)
def _kept(same: _Same) -> _Read:
    return _Read(same.policies)


def _read(policies: Sequence[IsolationPolicy]) -> _Read:
    """The policies, compiled; cached if they are immutable."""
    return _kept(_Same(policies)) if isinstance(policies, tuple) else _Read(policies)


def _make_room(answers: dict[str, Any]) -> None:
    if len(answers) >= _ANSWERS_MAX:
        answers.clear()


def _broken(policy: IsolationPolicy, part: str, why: str) -> Zone:
    return Zone(policy.name, broken=f"isolation policy `{policy.name}` cannot be read: {part}: {why}")
