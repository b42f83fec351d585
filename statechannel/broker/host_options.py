"""Bounds of a host, as its settings have them."""

from __future__ import annotations

from dataclasses import dataclass, field

from statechannel.broker.changes import WAITING_MAX_BYTES
from statechannel.broker.driver import DriverOptions
from statechannel.broker.requests import CoordinatorOptions


@dataclass(frozen=True, slots=True)
class HostOptions:
    """Bounds of a host.

    Attributes:
        watchdog_s: A loop without progress for this time is stuck.
        blocked_s: A loop without progress for this time is blocked, which is logged with the hook that does it.
        close_timeout_s: Longest time for flushing and closing the Kafka clients.
        hooks_close_s: Longest time for the hooks of released bundles at the end, before that.
        shutdown_grace_s: Longest time for them after the budget of a shutdown.
        commands_max: Maximum number of commands without an answer.
        extension_requests_max: Maximum number of concurrent requests to extensions.
        changes_max_bytes: Maximum queue size of one subscriber of the changes.
        observe_s: Time between two updates of the gauges.
        debt_alarm_s: An open debt that is older raises the alarm.
    """

    watchdog_s: float = 10.0
    blocked_s: float = 1.0
    close_timeout_s: float = 8.0
    hooks_close_s: float = 15.0
    shutdown_grace_s: float = 5.0
    commands_max: int = 100_000
    extension_requests_max: int = 100
    changes_max_bytes: int = WAITING_MAX_BYTES
    observe_s: float = 1.0
    debt_alarm_s: float = 900.0
    driver: DriverOptions = field(default_factory=DriverOptions)
    desk: CoordinatorOptions = field(default_factory=CoordinatorOptions)
