"""Plain values that an engine is made with. `statechannel.settings` checks and explains them; the core only uses them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from statechannel.protocol.record import NEWEST_FORMAT

OBSERVER = "-observer"
"""Broker id of an engine that only reads; no broker can have it."""
TICK_INTERVAL_S = 0.2


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this process is.

    Attributes:
        incarnation: New for every start of the process.
        entropy: Random bytes (10) that make the ids of this process unique; the core draws no randomness itself.
        listeners: URL by protocol name, as sent to clients.
        log: Id of the channel's topic as this process opened it; empty where it has none.
        http: Where its endpoint for operators is; empty where it has none.
        extensions: Names of the extensions that run with it.
        checks: Checks that these make before it executes requests.
    """

    broker: str
    incarnation: str
    entropy: bytes
    started_at_ms: int
    listeners: Mapping[str, str] = field(default_factory=dict)
    persistent: bool = True
    non_persistent: bool = True
    properties: Mapping[str, str] = field(default_factory=dict)
    software: str = "0"
    http: str = ""
    log: str = ""
    extensions: Sequence[str] = ()
    checks: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Limits and intervals of one engine; the unit is the last word of each name.

    Attributes:
        newest_format: Format of records that this engine reads, beside all older ones, and writes once everybody reads it
            (`statechannel.protocol.record`). No setting: a version reads what its code reads. Others are for tests.
        split_hooks: Whether the broker has hooks for splits; without them a split makes no call for the parent.
        accept_lost_head: Take what is left for the truth where records were deleted and no broker lives that knows them.
        observes: Whether it only reads, and does not become a member. Its identity is `OBSERVER`, which no broker can have.
        tick_interval_s: Time between two looks at the deadlines of all parts. No setting; the test kit has a longer one.
    """

    partitions: int = 1
    compaction_lag_s: float = 3600.0
    heartbeat_interval_s: float = 1.0
    member_interval_s: float = 1.0
    member_expiry_s: float = 6.0
    safe_after_s: float = 4.0
    settle_s: float = 10.0
    take_over: bool = False
    hook_deadline_s: float = 15.0
    in_flight_limit_s: float = 30.0
    retry_interval_s: float = 0.5
    unknown_limit_s: float = 60.0
    pending_max: int = 4096
    lookup_waiting_max: int = 100_000
    lookup_cached_max: int = 200_000
    assigning_max: int = 64
    debt_age_leader_s: float = 1.0
    debt_batch_max: int = 256
    repair_interval_s: float = 1.0
    scan_interval_s: float = 30.0
    repair_batch_max: int = 1024
    mass_loss_window_s: float = 10.0
    mass_loss_fraction: float = 1 / 3
    mass_loss_pause_s: float = 60.0
    decline_memory_s: float = 30.0
    handover_window: int = 64
    purge_interval_s: float = 60.0
    purge_deleted_after_s: float = 3 * 86_400.0
    cold_start_after_s: float = 10.0
    cold_start_window: int = 1000
    kept_records_max: int = 1_000_000
    kept_max_bytes: int = 256 * 2**20
    split_parts_max: int = 4_096
    closing_mark_s: float = 120.0
    operations_max: int = 10_000
    replay_tail_records: int = 10_000
    remembered_max: int = 10_000
    members_max: int = 2_000
    members_max_bytes: int = 64 * 2**20
    accept_lost_head: bool = False
    lease_s: float | None = None
    newest_format: int = NEWEST_FORMAT
    split_hooks: bool = False
    observes: bool = False
    tick_interval_s: float = TICK_INTERVAL_S
    bound_tenants: tuple[str, ...] = ("pulsar", "sla-monitor")
