"""Rules between settings: a list of named rules, all checked, all reported."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import NamedTuple

from statechannel.settings.errors import SettingsError
from statechannel.settings.names import as_argument
from statechannel.settings.tree import Settings

FAR_BELOW = 10
""""Far below" means at most a tenth."""


class Comparison(NamedTuple):
    """How two settings are compared, each multiplied by a number or by another setting."""

    holds: Callable[[float, float], bool]
    left_times: float | str = 1
    right_times: float = 1


COMPARISONS: Mapping[str, Comparison] = {
    "<": Comparison(operator.lt),
    "<=": Comparison(operator.le),
    "<= half of": Comparison(operator.le, 2),
    "<= a third of": Comparison(operator.le, 3),
    "<= a tenth of": Comparison(operator.le, FAR_BELOW),
    ">=": Comparison(operator.ge),
    ">= two times": Comparison(operator.ge, 1, 2),
    ">= three times": Comparison(operator.ge, 1, 3),
    "times `runtime.restarts_max` <": Comparison(operator.lt, "runtime.restarts_max"),
}


class Relation(NamedTuple):
    """One rule.

    Attributes:
        left, right: The compared settings. Milliseconds and seconds are distinguished by the last word of their names.
        relation: One of `COMPARISONS`.
    """

    left: str
    relation: str
    right: str
    why: str

    def __str__(self) -> str:
        return f"{self.left} {self.relation} {self.right}"

    def holds(self, settings: Settings) -> bool:
        """Whether the settings follow the rule; a setting that is None has no rules."""
        left, right = _number(settings, self.left), _number(settings, self.right)
        if left is None or right is None:
            return True
        if self.left.endswith("_ms") and self.right.endswith("_s"):
            right *= 1_000
        elif self.left.endswith("_s") and self.right.endswith("_ms"):
            left *= 1_000
        compare = COMPARISONS[self.relation]
        times = _number(settings, compare.left_times) if isinstance(compare.left_times, str) else compare.left_times
        return compare.holds(left * (times or 0), right * compare.right_times)


RELATIONS: tuple[Relation, ...] = (
    Relation("hooks.deadline_s", "<", "repair.in_flight_limit_s", "a hook must end before its bundle is repaired"),
    Relation("hooks.deadline_s", "<", "hooks.shutdown_budget_s", "a shutdown waits for at least one hook"),
    Relation(
        "kafka.delivery_timeout_ms",
        "<= a tenth of",
        "channel.min_compaction_lag_ms",
        "a record still in flight when the cleaner runs voids the lag (protocol.md section 6)",
    ),
    Relation("kafka.request_timeout_ms", "<", "kafka.delivery_timeout_ms", "an append is tried more than once"),
    Relation("kafka.delivery_timeout_ms", "<=", "limits.unknown_limit_s", "the client's own answer comes before ours"),
    Relation(
        "kafka.session_timeout_ms",
        "<=",
        "repair.in_flight_limit_s",
        "a lost leader is replaced before anything counts as stuck",
    ),
    Relation(
        "channel.min_compaction_lag_ms", "<=", "channel.max_compaction_lag_ms", "otherwise Kafka refuses the topic"
    ),
    Relation(
        "channel.max_compaction_lag_ms",
        "<= half of",
        "channel.delete_retention_ms",
        "replicas are compacted independently: a tombstone must outlive the records before it on each (protocol.md section 6)",
    ),
    Relation("channel.segment_ms", "<=", "channel.max_compaction_lag_ms", "only closed segments are compacted"),
    Relation(
        "leader.debt_age_s",
        "<= a tenth of",
        "channel.min_compaction_lag_ms",
        "a debt must be paid long before the cleaner runs (protocol.md, section 3)",
    ),
    Relation(
        "leader.purge_deleted_after_s",
        ">=",
        "channel.min_compaction_lag_ms",
        "no key is purged within the compaction lag (protocol.md, section 3)",
    ),
    Relation(
        "leader.cold_start_after_s",
        ">= three times",
        "leader.heartbeat_interval_s",
        "one late heartbeat must not cause a cold start",
    ),
    Relation(
        "membership.interval_s",
        "<= a third of",
        "membership.expiry_s",
        "one missed heartbeat must not make a broker lost",
    ),
    Relation("membership.interval_s", "<= half of", "safe_mode.after_s", "one late heartbeat must not cause safe mode"),
    Relation(
        "safe_mode.after_s",
        "<",
        "membership.expiry_s",
        "a broker that is cut off detects it before it is lost for others",
    ),
    Relation(
        "safe_mode.settle_s", ">= two times", "membership.interval_s", "every broker needs time for its next heartbeat"
    ),
    Relation(
        "safe_mode.lease_s",
        "<",
        "membership.expiry_s",
        "the lease must end before the leader's expiry: then no other broker serves meanwhile",
    ),
    Relation("safe_mode.lease_s", ">= two times", "membership.interval_s", "one late heartbeat must not end service"),
    Relation(
        "repair.mass_loss_window_s",
        ">=",
        "membership.interval_s",
        "brokers that are lost together expire within one interval",
    ),
    Relation("repair.interval_s", "<=", "repair.scan_interval_s", "the full scan is the rarer one"),
    Relation(
        "runtime.restart_longest_wait_s",
        "times `runtime.restarts_max` <",
        "runtime.restart_window_s",
        "otherwise the back-offs outlast the window, and a permanently failing thread is restarted for ever",
    ),
    Relation("runtime.restart_first_wait_s", "<=", "runtime.restart_longest_wait_s", "back-offs grow"),
    Relation(
        "requests.repeat_s",
        "<",
        "limits.command_timeout_s",
        "a lost claim is written again before the caller's time-out",
    ),
)


def require_relations(settings: Settings, *, by_opening: bool = False) -> None:
    """Refuse settings that break a rule.

    Args:
        by_opening: They are arguments of `StateChannel.open`: the hint says which.

    Raises:
        SettingsError: With a sentence for each broken rule.
    """
    broken = [relation for relation in RELATIONS if not relation.holds(settings)]
    if not broken:
        return
    hint = "Change one of the two; design/reference/settings.md explains both."
    if by_opening:
        names = dict.fromkeys(name for relation in broken for name in (relation.left, relation.right))
        arguments = [as_argument(*name.split(".")) for name in names]
        hint += f" Arguments of `open`: {', '.join(f'`{argument}`' for argument in arguments)}."
    raise SettingsError([_violation(relation, settings) for relation in broken], hint=hint, settings=settings)


def _violation(relation: Relation, settings: Settings) -> str:
    values = (f"{name} = {_number(settings, name)}" for name in (relation.left, relation.right))
    return f"{relation} must hold ({', '.join(values)}): {relation.why}."


def _number(settings: Settings, name: str) -> float | None:
    group, field = name.split(".")
    number: float | None = getattr(getattr(settings, group), field)
    return number
