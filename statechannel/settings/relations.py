"""Rules between settings: a list of named rules, all checked, all reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from statechannel.settings.tree import Settings

FAR_BELOW = 10
""""Far below" means at most a tenth."""


class Relation(NamedTuple):
    """One rule.

    Attributes:
        left, right: The compared settings, as text.
        why: Reason of the rule.
        holds: Predicate of the rule.
    """

    left: str
    relation: str
    right: str
    why: str
    holds: Callable[[Settings], bool]

    def __str__(self) -> str:
        return f"{self.left} {self.relation} {self.right}"


def _optional(lease_s: float | None, holds: Callable[[float], bool]) -> bool:
    return lease_s is None or holds(lease_s)


RELATIONS: tuple[Relation, ...] = (
    Relation(
        "hooks.deadline_s",
        "<",
        "repair.in_flight_limit_s",
        "a hook must end before its bundle is repaired",
        lambda s: s.hooks.deadline_s < s.repair.in_flight_limit_s,
    ),
    Relation(
        "hooks.deadline_s",
        "<",
        "hooks.shutdown_budget_s",
        "a shutdown waits for at least one hook",
        lambda s: s.hooks.deadline_s < s.hooks.shutdown_budget_s,
    ),
    Relation(
        "kafka.delivery_timeout_ms",
        "<= a tenth of",
        "channel.min_compaction_lag_ms",
        "a record still in flight when the cleaner runs voids the lag (protocol.md section 6)",
        lambda s: s.kafka.delivery_timeout_ms * FAR_BELOW <= s.channel.min_compaction_lag_ms,
    ),
    Relation(
        "kafka.request_timeout_ms",
        "<",
        "kafka.delivery_timeout_ms",
        "an append is tried more than once",
        lambda s: s.kafka.request_timeout_ms < s.kafka.delivery_timeout_ms,
    ),
    Relation(
        "kafka.delivery_timeout_ms",
        "<=",
        "limits.unknown_limit_s",
        "the client's own answer comes before ours",
        lambda s: s.kafka.delivery_timeout_ms <= s.limits.unknown_limit_s * 1_000,
    ),
    Relation(
        "kafka.session_timeout_ms",
        "<=",
        "repair.in_flight_limit_s",
        "a lost leader is replaced before anything counts as stuck",
        lambda s: s.kafka.session_timeout_ms <= s.repair.in_flight_limit_s * 1_000,
    ),
    Relation(
        "channel.min_compaction_lag_ms",
        "<=",
        "channel.max_compaction_lag_ms",
        "otherwise Kafka refuses the topic",
        lambda s: s.channel.min_compaction_lag_ms <= s.channel.max_compaction_lag_ms,
    ),
    Relation(
        "channel.max_compaction_lag_ms",
        "<= half of",
        "channel.delete_retention_ms",
        "replicas are compacted independently: a tombstone must outlive the records before it on each (protocol.md section 6)",
        lambda s: 2 * s.channel.max_compaction_lag_ms <= s.channel.delete_retention_ms,
    ),
    Relation(
        "channel.segment_ms",
        "<=",
        "channel.max_compaction_lag_ms",
        "only closed segments are compacted",
        lambda s: s.channel.segment_ms <= s.channel.max_compaction_lag_ms,
    ),
    Relation(
        "leader.debt_age_s",
        "<= a tenth of",
        "channel.min_compaction_lag_ms",
        "a debt must be paid long before the cleaner runs (protocol, R3)",
        lambda s: s.leader.debt_age_s * 1_000 * FAR_BELOW <= s.channel.min_compaction_lag_ms,
    ),
    Relation(
        "leader.purge_deleted_after_s",
        ">=",
        "channel.min_compaction_lag_ms",
        "no key is purged within the compaction lag (protocol, R6)",
        lambda s: s.leader.purge_deleted_after_s * 1_000 >= s.channel.min_compaction_lag_ms,
    ),
    Relation(
        "leader.cold_start_after_s",
        ">= three times",
        "leader.heartbeat_interval_s",
        "one late heartbeat must not cause a cold start",
        lambda s: s.leader.cold_start_after_s >= 3 * s.leader.heartbeat_interval_s,
    ),
    Relation(
        "membership.interval_s",
        "<= a third of",
        "membership.expiry_s",
        "one missed heartbeat must not make a broker lost",
        lambda s: 3 * s.membership.interval_s <= s.membership.expiry_s,
    ),
    Relation(
        "membership.interval_s",
        "<= half of",
        "safe_mode.after_s",
        "one late heartbeat must not cause safe mode",
        lambda s: 2 * s.membership.interval_s <= s.safe_mode.after_s,
    ),
    Relation(
        "safe_mode.after_s",
        "<",
        "membership.expiry_s",
        "a broker that is cut off detects it before it is lost for others",
        lambda s: s.safe_mode.after_s < s.membership.expiry_s,
    ),
    Relation(
        "safe_mode.settle_s",
        ">= two times",
        "membership.interval_s",
        "every broker needs time for its next heartbeat",
        lambda s: s.safe_mode.settle_s >= 2 * s.membership.interval_s,
    ),
    Relation(
        "safe_mode.lease_s",
        "<",
        "membership.expiry_s",
        "the lease must end before the leader's expiry: then no other broker serves meanwhile",
        lambda s: _optional(s.safe_mode.lease_s, lambda lease_s: lease_s < s.membership.expiry_s),
    ),
    Relation(
        "safe_mode.lease_s",
        ">= two times",
        "membership.interval_s",
        "one late heartbeat must not end service",
        lambda s: _optional(s.safe_mode.lease_s, lambda lease_s: lease_s >= 2 * s.membership.interval_s),
    ),
    Relation(
        "repair.mass_loss_window_s",
        ">=",
        "membership.interval_s",
        "brokers that are lost together expire within one interval",
        lambda s: s.repair.mass_loss_window_s >= s.membership.interval_s,
    ),
    Relation(
        "repair.interval_s",
        "<=",
        "repair.scan_interval_s",
        "the full scan is the rarer one",
        lambda s: s.repair.interval_s <= s.repair.scan_interval_s,
    ),
    Relation(
        "runtime.restart_longest_wait_s",
        "times `runtime.restarts_max` <",
        "runtime.restart_window_s",
        "otherwise the back-offs outlast the window, and a permanently failing thread is restarted for ever",
        lambda s: s.runtime.restart_longest_wait_s * s.runtime.restarts_max < s.runtime.restart_window_s,
    ),
    Relation(
        "runtime.restart_first_wait_s",
        "<=",
        "runtime.restart_longest_wait_s",
        "back-offs grow",
        lambda s: s.runtime.restart_first_wait_s <= s.runtime.restart_longest_wait_s,
    ),
    Relation(
        "requests.repeat_s",
        "<",
        "limits.command_timeout_s",
        "a lost claim is written again before the caller's time-out",
        lambda s: s.requests.repeat_s < s.limits.command_timeout_s,
    ),
)


def violations(settings: Settings) -> Iterator[str]:
    for relation in RELATIONS:
        if not relation.holds(settings):
            left, right = _value(settings, relation.left), _value(settings, relation.right)
            yield f"{relation} must hold ({left}, {right}): {relation.why}."


def _value(settings: Settings, name: str) -> str:
    group, field = name.split(".")
    return f"{name} = {getattr(getattr(settings, group), field)}"
