"""Settings of the engine, the process around it, and the requests topic. Times are in seconds unless the name says otherwise."""

from __future__ import annotations

from statechannel.settings.field import SettingsGroup, setting

DAY_S = 86_400.0


class MembershipSettings(SettingsGroup):
    """Heartbeats in the registry topic."""

    interval_s: float = setting(1.0, "Time between two heartbeats of a broker: a few bytes each.", ge=0.05, le=60)
    expiry_s: float = setting(
        6.0,
        "A broker without a heartbeat for this time is lost and its bundles are repaired: six heartbeats, and as long as "
        "Kafka's usual minimum for sessions.",
        pip_192="(session time-out of the metadata store)",
        ge=0.5,
        le=600,
    )
    take_over: bool = setting(
        False,
        "Start although a process with the same broker id may still be alive, and resume its bundles at once: for supervisors "
        "that know it is gone. Without it a process that follows one that was killed waits for `expiry_s`, and its bundles move.",
    )
    lost_shown_s: float = setting(
        3_600.0,
        "Time for which commands show a broker that was lost without a goodbye and is not back, and call the channel degraded: "
        "as long as the registry keeps heartbeats, unless its `retention.ms` is longer. 0: not at all.",
        ge=0,
        le=30 * DAY_S,
    )


class LeaderSettings(SettingsGroup):
    """Duties of the leader, and of every caught-up member without a leader."""

    heartbeat_interval_s: float = setting(
        1.0,
        "Time between two heartbeats on the channel: joining brokers wait for one, and they roll segments.",
        ge=0.05,
        le=60,
    )
    debt_age_s: float = setting(
        1.0, "Age at which the leader pays a debt by an assert: the next move often pays it anyway.", ge=0, le=60
    )
    debt_batch_max: int = setting(
        256, "Concurrent payments of debts: 65,000 after a burst of junk still leave room for moves.", ge=1
    )
    purge_interval_s: float = setting(60.0, "Time between two searches for keys to purge: not urgent.", ge=1)
    purge_deleted_after_s: float = setting(
        3 * DAY_S,
        "Age at which the keys of a deleted namespace's bundles are purged: later than any query for them.",
        pip_192="loadBalancerServiceUnitStateTombstoneDelayTimeInSeconds",
        ge=1,
    )
    accept_lost_head: bool = setting(
        False,
        "Accept what is left as the truth where records were deleted from the channel's log, and no broker is alive that knows "
        "them: for one start, after looking for an export. Without it brokers wait for one that restates them.",
    )
    cold_start_after_s: float = setting(
        10.0,
        "Without a caught-up member or a heartbeat on the channel for this time, the elected leader accepts its own view "
        "as the truth: ten missed heartbeats. The same on all brokers.",
        ge=0.5,
        le=3_600,
    )
    cold_start_window: int = setting(1_000, "Asserts of a cold start in flight at once.", ge=1)


class LookupSettings(SettingsGroup):
    """Lookups of topics."""

    timeout_s: float = setting(
        30.0,
        "How long an answer may be deferred while a bundle moves; then it is `undetermined`, never a stale owner.",
        pip_192="loadBalancerInFlightServiceUnitStateWaitingTimeInMillis",
        gt=0,
        le=3_600,
    )
    waiting_max: int = setting(
        100_000, "Lookups waiting at once; more are answered `undetermined`: at most 100 MB.", ge=1
    )
    cached_max: int = setting(
        200_000, "Names of topics and bundles whose owner is known without a step of the engine: at most 100 MB.", ge=1
    )
    assigning_max: int = setting(
        64,
        "Concurrent assignments started by a broker; more bundles are queued, in a different order on each broker: in a "
        "storm nearly every bundle is then proposed by only one broker.",
        ge=1,
        le=100_000,
    )
    closing_mark_s: float = setting(
        120.0,
        "How long a namespace marked for deletion keeps lookups from assigning its bundles, if the "
        "deletion is interrupted.",
        ge=1,
        le=3_600,
    )
    bound_tenants: tuple[str, ...] = setting(
        ("pulsar", "sla-monitor"),
        "Tenants whose namespaces are bound to one broker by rule (heartbeat and SLA namespaces) and never enter the "
        "channel: upstream's names.",
        pip_192="(NamespaceService.HEARTBEAT_NAMESPACE_FMT, SLA_NAMESPACE_FMT)",
    )
    default_bundles: int = setting(
        4,
        "Bundles of a new namespace if the request has no number.",
        pip_192="defaultNumberOfNamespaceBundles",
        ge=1,
        le=32_768,
    )


class HookSettings(SettingsGroup):
    """Hooks of the embedding broker."""

    deadline_s: float = setting(
        15.0,
        "A hook that has not returned by then counts as failed: half of the limit of an in-flight state, so that the "
        "record that follows it is still in time.",
        pip_192="namespaceBundleUnloadingTimeoutMs",
        gt=0,
        le=600,
    )
    threads_max: int = setting(
        32,
        "Concurrent hooks that are plain functions (`BlockingBrokerHooks`), each in a thread. A function "
        "that never returns keeps its thread; with all of them occupied `/readyz` fails.",
        ge=1,
        le=1_000,
    )
    handover_window: int = setting(
        64,
        "Concurrent hand-overs at shutdown: Pulsar's number for overrides.",
        pip_192="loadBalancerServiceUnitStateMaxConcurrentOverrides",
        ge=1,
    )
    shutdown_budget_s: float = setting(
        60.0,
        "Time for a graceful shutdown; bundles not handed over by then are repaired by the leader.",
        gt=0,
        le=3_600,
    )
    shutdown_bundle_s: float = setting(
        0.01, "Additional time of a graceful shutdown for each bundle that the broker serves.", ge=0, le=60
    )


class SafeModeSettings(SettingsGroup):
    """Behaviour of a broker while Kafka is unavailable."""

    after_s: float = setting(
        4.0,
        "A broker that has not read back its own heartbeat for this time enters safe mode: before it is lost for others.",
        ge=0.2,
        le=600,
    )
    settle_s: float = setting(
        10.0,
        "After Kafka's return: longest wait for heartbeats of all registered brokers. No broker is declared lost "
        "before; PIP-192 waits two to three minutes.",
        pip_192="MAX_CLEAN_UP_DELAY_TIME_IN_SECS",
        ge=0,
        le=600,
    )
    lease_s: float | None = setting(
        None,
        "An owner that is cut off stops serving after this time, counted from the sending of its newest heartbeat that "
        "was read back. None: it goes on serving, and storage fences it by generation.",
        gt=0,
    )


class RepairSettings(SettingsGroup):
    """Repair of unserved bundles by the leader."""

    interval_s: float = setting(1.0, "Time between two checks for stuck or orphaned bundles.", ge=0.05, le=60)
    scan_interval_s: float = setting(
        30.0,
        "Time between two full scans of all bundles, in case a notification was lost: half of Pulsar's.",
        pip_192="loadBalancerServiceUnitStateMonitorIntervalInSeconds",
        ge=1,
        le=3_600,
    )
    in_flight_limit_s: float = setting(
        30.0,
        "Age at which the leader repairs an in-flight state.",
        pip_192="loadBalancerInFlightServiceUnitStateWaitingTimeInMillis",
        gt=0,
        le=3_600,
    )
    batch_max: int = setting(1_024, "Repairs in flight at once: 65,000 orphans take at most a minute.", ge=1)
    decline_memory_s: float = setting(
        30.0,
        "How long a broker that declined a bundle is skipped for it: time for the cause to pass. Where no other broker may "
        "take the bundle it is asked again after a sixth of that, and after twice as long each time.",
        ge=0,
        le=3_600,
    )
    mass_loss_window_s: float = setting(10.0, "Brokers lost within this time count together.", ge=1, le=600)
    mass_loss_fraction: float = setting(
        1 / 3,
        "If more than this fraction of the brokers, and at least two, are lost together, repair pauses: the cause is "
        "probably the network, not the brokers.",
        gt=0,
        le=1,
    )
    mass_loss_pause_s: float = setting(60.0, "Longest repair pause; a command ends it earlier.", ge=0, le=3_600)


class LimitSettings(SettingsGroup):
    """Bounds of queues, retries and memory."""

    retry_interval_s: float = setting(
        0.5, "Back-off before a record that lost a race is proposed again.", ge=0.01, le=60
    )
    unknown_limit_s: float = setting(
        60.0, "An append without delivery report or read-back for this time is answered as unknown.", gt=0, le=3_600
    )
    pending_max: int = setting(4_096, "Own records in flight at once; more wait.", ge=1)
    kept_records_max: int = setting(
        1_000_000, "Records that a joining reader keeps in memory; with more it starts over.", ge=1_000
    )
    kept_max_mib: int = setting(256, "The same limit by the size of their values (MiB).", ge=16)
    split_parts_max: int = setting(
        4_096,
        "Maximum number of parts of one split; more are refused: each part is a hook "
        "and a line in a record, and one step of the loop creates all of them.",
        ge=2,
        le=32_768,
    )
    operations_max: int = setting(10_000, "Ended operations whose outcome is kept for later queries.", ge=1)
    remembered_max: int = setting(10_000, "Newest processes that are remembered after they left or were lost.", ge=100)
    members_max: int = setting(2_000, "Maximum number of live brokers; a further one is ignored.", ge=10)
    members_max_mib: int = setting(
        64, "The same limit by the size of their heartbeats (MiB); those of at most 64 KiB are always kept.", ge=1
    )
    replay_tail_records: int = setting(
        10_000,
        "Newest records from which a starting broker learns of ended operations; the rest is replayed faster.",
        ge=1,
    )
    command_timeout_s: float = setting(60.0, "Default time-out of a command.", gt=0, le=3_600)
    inbox_max: int = setting(
        20_000,
        "Inputs queued for the engine; a full inbox throttles the Kafka reader. Heartbeats wait behind a flood: "
        "this number takes well under a second.",
        ge=1_000,
    )
    inbox_max_mib: int = setting(
        64,
        "The same limit by the size of their values (MiB): twenty thousand large records would exhaust memory.",
        ge=1,
    )


class RuntimeSettings(SettingsGroup):
    """The process around an engine."""

    join_timeout_s: float = setting(
        120.0,
        "Longest wait of a start until it has caught up: a replay of a million records takes a fraction, a cold start "
        "with its wait for others the rest.",
        gt=0,
        le=86_400,
    )
    loop_blocked_s: float = setting(
        1.0,
        "An event loop that makes no progress for this time is blocked: a warning names the hook, and the place in the code.",
        ge=0.5,
        le=600,
    )
    watchdog_s: float = setting(
        10.0,
        "A loop that makes no progress for this time is stuck, and `broker run` ends its process: later than the "
        "expiry of its heartbeats, far above any pause of a healthy one.",
        ge=0.5,
        le=600,
    )
    close_timeout_s: float = setting(
        8.0,
        "Longest time for flushing and closing the Kafka clients at shutdown: supervisors kill after ten seconds or more.",
        gt=0,
        le=600,
    )
    shutdown_grace_s: float = setting(
        5.0,
        "A shutdown that has not ended this time after its budget is forced: the goodbye takes two heartbeats. Hooks at the end "
        "have the rest of the budget and this time.",
        ge=0,
        le=600,
    )
    commands_max: int = setting(
        100_000, "Commands and lookups of callers waiting for an answer; more are refused: at most 100 MB.", ge=1
    )
    changes_max_mib: int = setting(
        64,
        "Size of the changes queued for a slow subscriber, as well as the number that it asked for; beyond it its "
        "stream ends with an error that names the position.",
        ge=1,
    )
    restarts_max: int = setting(
        5,
        "Failures of the reader's or the election's thread that are tolerated within the window; one more ends the member, "
        "since its cause does not pass by itself.",
        ge=0,
        le=1_000,
    )
    restart_window_s: float = setting(60.0, "Older failures of a thread are forgotten.", gt=0, le=86_400)
    restart_first_wait_s: float = setting(
        0.2, "Back-off before a failed thread is restarted; doubled each time.", gt=0, le=60
    )
    restart_longest_wait_s: float = setting(
        5.0, "Upper bound of that back-off: below the time after which this broker is lost for others.", gt=0, le=600
    )


class RequestSettings(SettingsGroup):
    """Requests: commands that arrive through the requests topic."""

    open_max: int = setting(10_000, "Open requests; more are refused with a reply.", ge=1)
    open_max_mib: int = setting(
        64, "The same limit by their size (MiB): a request that names 32,768 bounds has a few hundred kilobytes.", ge=1
    )
    extension_requests_max: int = setting(
        100, "Concurrent requests to extensions of this broker; more are refused.", ge=1
    )
    remembered_max: int = setting(
        20_000, "Ended requests that are remembered, so that a repeated id is not executed twice.", ge=1
    )
    repeat_s: float = setting(
        2.0,
        "A claim or reply that was not read back is written again after this time: copies are harmless.",
        gt=0,
        le=60,
    )
    review_s: float = setting(
        0.25,
        "Time between two checks of all open requests, because owners and leaders change; a newly read one "
        "is checked at once.",
        gt=0,
        le=60,
    )
    linger_s: float = setting(
        300.0, "A request is forgotten this time after its deadline, with or without a reply.", ge=0
    )
    reply_max_bytes: int = setting(
        500_000,
        "A larger reply is replaced by one that says so: half of Kafka's default maximum.",
        ge=1_000,
        le=900_000,
    )
