"""Isolation policies: which brokers a namespace may use (upstream `NamespaceIsolationPolicies`, `MinAvailablePolicy`).

The first policy one of whose patterns matches the whole namespace counts. Its primaries may take the bundle; if fewer of them
than `min_available` can, its secondaries may, too. A namespace without a policy may use shared brokers only: those that are
primary in no policy. A pattern that cannot be read breaks its policy: whatever depends on it gets no broker.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from shedders.cluster import Broker, IsolationPolicy


@dataclass(frozen=True, slots=True)
class Zone:
    """What isolation says for a namespace.

    Attributes:
        policy: Name of its policy; None where none matches and shared brokers are meant.
        primary: Brokers it may use; the shared ones where there is no policy.
        secondary: Brokers that help out.
        broken: Why nothing can be said; names the policy. Then nobody may take its bundles.
    """

    policy: str | None = None
    primary: frozenset[str] = frozenset()
    secondary: frozenset[str] = frozenset()
    min_available: int = 1
    broken: str | None = None


class Isolation:
    """The policies against the registered brokers; answers are kept, as both stay the same for a whole decision."""

    def __init__(self, policies: Sequence[IsolationPolicy], brokers: Mapping[str, Broker]) -> None:
        self._policies = policies
        self._brokers = brokers
        self._zones: dict[str, Zone] = {}
        self._named: dict[int, Zone] = {}

    def zone(self, namespace: str) -> Zone | None:
        """What holds for a namespace; None where there are no policies at all, so that everybody may."""
        if not self._policies:
            return None
        if namespace not in self._zones:
            self._zones[namespace] = self._find(namespace)
        return self._zones[namespace]

    @cached_property
    def owners(self) -> Mapping[str, str]:
        """The policy that has a broker for its own, by broker, as far as patterns can be read."""
        found: dict[str, str] = {}
        for policy in reversed(self._policies):
            patterns = compiled(policy.primary)
            if not isinstance(patterns, str):
                found.update((name, policy.name) for name in self._matching(patterns))
        return found

    def _find(self, namespace: str) -> Zone:
        for index, policy in enumerate(self._policies):
            patterns = compiled(policy.namespaces)
            if isinstance(patterns, str):
                return _broken(policy, "namespaces", patterns)
            if any(pattern.fullmatch(namespace) for pattern in patterns):
                if index not in self._named:
                    self._named[index] = self._of(policy)
                return self._named[index]
        return self._shared

    def _of(self, policy: IsolationPolicy) -> Zone:
        primary, secondary = compiled(policy.primary), compiled(policy.secondary)
        if isinstance(primary, str):
            return _broken(policy, "primary", primary)
        if isinstance(secondary, str):
            return _broken(policy, "secondary", secondary)
        if not primary and not secondary:
            return Zone(
                policy.name, broken=f"isolation policy `{policy.name}` names neither primary nor secondary brokers"
            )
        first = self._matching(primary)
        return Zone(policy.name, first, self._matching(secondary) - first, policy.min_available)

    @cached_property
    def _shared(self) -> Zone:
        for policy in self._policies:
            patterns = compiled(policy.primary)
            if isinstance(patterns, str):
                return _broken(policy, "primary", patterns)
        return Zone(primary=frozenset(self._brokers.keys() - self.owners.keys()))

    def _matching(self, patterns: Sequence[re.Pattern[str]]) -> frozenset[str]:
        return frozenset(
            name
            for name, broker in self._brokers.items()
            if any(pattern.fullmatch(broker.address) for pattern in patterns)
        )


def compiled(patterns: Sequence[Any]) -> Sequence[re.Pattern[str]] | str:
    """The patterns, or what is wrong with them."""
    if isinstance(patterns, str):
        return f"`{patterns}` is one text where a list of patterns is meant"
    try:
        return _compile(tuple(patterns))
    except TypeError as error:
        return f"{patterns!r} is no list of patterns ({error})"


@lru_cache(maxsize=1024)
def _compile(patterns: tuple[Any, ...]) -> Sequence[re.Pattern[str]] | str:
    found = []
    for pattern in patterns:
        if not isinstance(pattern, str):
            return f"`{pattern!r}` is no text"
        try:
            found.append(re.compile(pattern))
        except (re.error, OverflowError, RecursionError) as error:
            return f"`{pattern}` is no regular expression ({error})"
    return found


def _broken(policy: IsolationPolicy, part: str, why: str) -> Zone:
    return Zone(policy.name, broken=f"isolation policy `{policy.name}` cannot be read: {part}: {why}")
