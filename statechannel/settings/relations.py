"""What settings must hold between each other: a list of named rules, all checked, all reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from statechannel.settings.tree import Settings

FAR_BELOW = 10
"""What must be far below something is at most a tenth of it."""


class Relation(NamedTuple):
    """One rule.

    Attributes:
        left, right: What is compared, as people write it.
        why: Why the rule holds.
        holds: The rule itself.
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
        "a hook must end before its bundle is repaired over its head",
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
        "a record that is still on its way when the cleaner comes voids the lag (protocol.md section 6)",
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
        "Kafka refuses the topic otherwise",
        lambda s: s.channel.min_compaction_lag_ms <= s.channel.max_compaction_lag_ms,
    ),
    Relation(
        "channel.max_compaction_lag_ms",
        "<= half of",
        "channel.delete_retention_ms",
        "replicas clean apart: when a null goes, each of them must have removed what it hid (protocol.md section 6)",
        lambda s: 2 * s.channel.max_compaction_lag_ms <= s.channel.delete_retention_ms,
    ),
    Relation(
        "channel.segment_ms",
        "<=",
        "channel.max_compaction_lag_ms",
        "only closed segments are cleaned",
        lambda s: s.channel.segment_ms <= s.channel.max_compaction_lag_ms,
    ),
    Relation(
        "leader.debt_age_s",
        "<= a tenth of",
        "channel.min_compaction_lag_ms",
        "a debt must be paid long before the cleaner comes (protocol, R3)",
        lambda s: s.leader.debt_age_s * 1_000 * FAR_BELOW <= s.channel.min_compaction_lag_ms,
    ),
    Relation(
        "leader.purge_deleted_after_s",
        ">=",
        "channel.min_compaction_lag_ms",
        "no key is purged before the lag (protocol, R6)",
        lambda s: s.leader.purge_deleted_after_s * 1_000 >= s.channel.min_compaction_lag_ms,
    ),
    Relation(
        "leader.cold_start_after_s",
        ">= three times",
        "leader.heartbeat_interval_s",
        "one late heartbeat is no reason for a cold start",
        lambda s: s.leader.cold_start_after_s >= 3 * s.leader.heartbeat_interval_s,
    ),
    Relation(
        "membership.interval_s",
        "<= a third of",
        "membership.expiry_s",
        "one lost heartbeat is no reason to call a broker lost",
        lambda s: 3 * s.membership.interval_s <= s.membership.expiry_s,
    ),
    Relation(
        "membership.interval_s",
        "<= half of",
        "safe_mode.after_s",
        "one late heartbeat is no reason for safe mode",
        lambda s: 2 * s.membership.interval_s <= s.safe_mode.after_s,
    ),
    Relation(
        "safe_mode.after_s",
        "<",
        "membership.expiry_s",
        "a broker that is cut off knows it before the others call it lost",
        lambda s: s.safe_mode.after_s < s.membership.expiry_s,
    ),
    Relation(
        "safe_mode.settle_s",
        ">= two times",
        "membership.interval_s",
        "every broker needs time to be heard again",
        lambda s: s.safe_mode.settle_s >= 2 * s.membership.interval_s,
    ),
    Relation(
        "safe_mode.lease_s",
        "<",
        "membership.expiry_s",
        "the lease must end before the leader's patience does: then nobody else serves meanwhile",
        lambda s: _optional(s.safe_mode.lease_s, lambda lease_s: lease_s < s.membership.expiry_s),
    ),
    Relation(
        "safe_mode.lease_s",
        ">= two times",
        "membership.interval_s",
        "one late heartbeat must not end the service",
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
        "otherwise the waits outlast the window, and a thread that fails for ever is started for ever",
        lambda s: s.runtime.restart_longest_wait_s * s.runtime.restarts_max < s.runtime.restart_window_s,
    ),
    Relation(
        "runtime.restart_first_wait_s",
        "<=",
        "runtime.restart_longest_wait_s",
        "waits grow",
        lambda s: s.runtime.restart_first_wait_s <= s.runtime.restart_longest_wait_s,
    ),
    Relation(
        "requests.repeat_s",
        "<",
        "limits.command_timeout_s",
        "a claim that was lost is written again while somebody waits for the answer",
        lambda s: s.requests.repeat_s < s.limits.command_timeout_s,
    ),
)


def violations(settings: Settings) -> Iterator[str]:
    """A sentence for each rule that does not hold."""
    for relation in RELATIONS:
        if not relation.holds(settings):
            left, right = _value(settings, relation.left), _value(settings, relation.right)
            yield f"{relation} must hold ({left}, {right}): {relation.why}."


def _value(settings: Settings, name: str) -> str:
    group, field = name.split(".")
    return f"{name} = {getattr(getattr(settings, group), field)}"
