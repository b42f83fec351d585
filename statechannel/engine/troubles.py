"""What heartbeats tell operators: blocked event loops, failing hooks, bundles without a broker, limits of Kafka."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from statechannel.engine.effects import Hook
from statechannel.engine.inputs import HookFailed, KafkaLimited, LoopBlocked
from statechannel.protocol.bounded import remember

TEXT_MAX = 300
UNPLACED_MAX = 1_000
UNPLACED_KEPT_MS = 300_000
"""A bundle that no client asks for any more is not reported for longer."""


class BlockedLoop(NamedTuple):
    """How often other code kept the event loop from running, and the last time."""

    times: int
    blocked_s: float
    place: str
    hook: str | None
    at_ms: int

    def fields(self) -> dict[str, Any]:
        return {
            "times": self.times,
            "seconds": round(self.blocked_s, 1),
            "place": self.place,
            "hook": self.hook,
            "at_ms": self.at_ms,
        }


class HookFailures(NamedTuple):
    """How often a hook raised or did not return in time since the start; error, bundle and wall clock are of the last time."""

    times: int
    since_ms: int
    at_ms: int
    bundle: str
    error: str

    def fields(self) -> dict[str, Any]:
        return {
            "times": self.times,
            "since_ms": self.since_ms,
            "at_ms": self.at_ms,
            "bundle": self.bundle,
            "error": self.error[:TEXT_MAX],
        }


class UnplacedCause(StrEnum):
    """What has to change before placement finds a broker.

    Attributes:
        POLICIES: A policy, a pin or a cordon keeps brokers out.
        LIMITS: The brokers that policies allow are full, or do not take this bundle now.
        FAILURE: Placement itself failed, or has not read the policies.
    """

    POLICIES = "policies"
    LIMITS = "limits"
    FAILURE = "failure"


class NoBroker(NamedTuple):
    """Why placement finds no broker for a bundle.

    Attributes:
        reason: A stable code: the filter that removed most brokers, such as `isolation` or `cordon`; or what failed.
        lasting: To wait does not help: what an operator has set, such as a cordon, keeps out every broker.
    """

    reason: str
    message: str
    lasting: bool = False
    cause: UnplacedCause = UnplacedCause.POLICIES


class _Unplaced(NamedTuple):
    since_ms: int
    at_ms: int
    why: NoBroker


@dataclass(slots=True)
class UnplacedBundles:
    """Bundles that lookups or repair would assign, but placement found no broker: the newest `UNPLACED_MAX`. Wall clock."""

    _bundles: dict[str, _Unplaced] = field(default_factory=dict)

    def note(self, bundle: str, why: NoBroker, now_ms: int) -> None:
        before = self._bundles.pop(bundle, None)
        remember(
            self._bundles, bundle, _Unplaced(now_ms if before is None else before.since_ms, now_ms, why), UNPLACED_MAX
        )

    def forget(self, bundle: str) -> None:
        self._bundles.pop(bundle, None)

    def fields(self, now_ms: int) -> dict[str, Any] | None:
        """Number of such bundles, and the newest; None without any."""
        for bundle, unplaced in list(self._bundles.items()):
            if now_ms - unplaced.at_ms <= UNPLACED_KEPT_MS:
                break  # the newest are the last
            del self._bundles[bundle]
        if not self._bundles:
            return None
        newest = next(reversed(self._bundles))
        why = self._bundles[newest].why
        return {
            "bundles": len(self._bundles),
            "bundle": newest,
            "reason": why.reason,
            "cause": why.cause.value,
            "message": why.message[:TEXT_MAX],
            "since_ms": min(unplaced.since_ms for unplaced in self._bundles.values()),
            "at_ms": self._bundles[newest].at_ms,
        }


@dataclass(slots=True)
class Troubles:
    """All of them of one process.

    Attributes:
        blocked: None: never.
    """

    blocked: BlockedLoop | None = None
    hooks: dict[Hook, HookFailures] = field(default_factory=dict)
    unplaced: UnplacedBundles = field(default_factory=UnplacedBundles)
    kafka: KafkaLimited = field(default_factory=lambda: KafkaLimited(None, None))

    def note(self, event: LoopBlocked | HookFailed | KafkaLimited, at_ms: int) -> None:
        """Count one more of its kind; Kafka's limits replace those before."""
        if isinstance(event, KafkaLimited):
            self.kafka = event
        elif isinstance(event, LoopBlocked):
            times = 1 if self.blocked is None else self.blocked.times + 1
            self.blocked = BlockedLoop(times, event.blocked_s, event.place, event.hook, at_ms)
        else:
            before = self.hooks.get(event.hook)
            times, since_ms = (1, at_ms) if before is None else (before.times + 1, before.since_ms)
            self.hooks[event.hook] = HookFailures(times, since_ms, at_ms, event.bundle, event.error)
