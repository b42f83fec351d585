"""Settings of the engine itself. Times are seconds unless the name says otherwise."""

from __future__ import annotations

from statechannel.settings.field import SettingsGroup, setting

DAY_S = 86_400.0


class MembershipSettings(SettingsGroup):
    """Heartbeats in the registry topic."""

    interval_s: float = setting(1.0, "Time between two heartbeats of a broker: a few bytes each.", ge=0.05, le=60)
    expiry_s: float = setting(
        6.0,
        "A broker that is not heard for this long is lost and its bundles are repaired: six heartbeats, and as long as "
        "Kafka's usual floor for sessions.",
        pip_192="(session time-out of the metadata store)",
        ge=0.5,
        le=600,
    )
    take_over: bool = setting(
        False,
        "Start although a process under the same broker id may still be heard: for supervisors that know it is gone.",
    )


class LeaderSettings(SettingsGroup):
    """What the leader does, and every caught-up member where the leader is away."""

    heartbeat_interval_s: float = setting(
        1.0,
        "Time between two heartbeats on the channel: what a joining broker waits for, and what rolls segments.",
        ge=0.05,
        le=60,
    )
    debt_age_s: float = setting(
        1.0, "Age at which the leader pays a debt by an assert: the next move often pays it for nothing.", ge=0, le=60
    )
    debt_batch_max: int = setting(
        256, "Debts paid at once: 65,000 after a burst of junk still leave room for moves.", ge=1
    )
    purge_interval_s: float = setting(
        60.0, "Time between two looks for keys that can be purged: there is no hurry.", ge=1
    )
    purge_deleted_after_s: float = setting(
        3 * DAY_S,
        "Age at which the keys of a deleted namespace's bundles are purged: later than anybody looks for them.",
        pip_192="loadBalancerServiceUnitStateTombstoneDelayTimeInSeconds",
        ge=1,
    )
    cold_start_after_s: float = setting(
        10.0,
        "Without a caught-up member or a heartbeat on the channel for this long, the elected leader takes its own view "
        "for the truth: ten missed heartbeats. The same on all brokers.",
        ge=0.5,
        le=3_600,
    )
    cold_start_window: int = setting(1_000, "Asserts of a cold start that may be on their way at once.", ge=1)


class LookupSettings(SettingsGroup):
    """Answers to who serves a topic."""

    timeout_s: float = setting(
        30.0,
        "How long an answer may be deferred while a bundle moves; then it is `undetermined`, never a stale owner.",
        pip_192="loadBalancerInFlightServiceUnitStateWaitingTimeInMillis",
        gt=0,
        le=3_600,
    )
    waiting_max: int = setting(
        100_000, "Lookups that may wait at once; more are answered `undetermined`: 100 MB at most.", ge=1
    )
    assigning_max: int = setting(
        64,
        "Assignments that a broker begins at once; more bundles wait in line, each broker's in an order of its own: in a "
        "storm nearly every bundle is then proposed by one broker instead of by all.",
        ge=1,
        le=100_000,
    )
    closing_mark_s: float = setting(
        120.0,
        "How long the mark of a namespace that is being deleted keeps lookups from assigning its bundles, should the "
        "deletion stop half-way.",
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
        "Bundles of a new namespace where nobody says how many.",
        pip_192="defaultNumberOfNamespaceBundles",
        ge=1,
        le=32_768,
    )


class HookSettings(SettingsGroup):
    """Calls to the embedding broker."""

    deadline_s: float = setting(
        15.0,
        "A hook that has not returned by then counts as failed: half of what an in-flight state may take, so that the "
        "record that follows it still comes in time.",
        pip_192="namespaceBundleUnloadingTimeoutMs",
        gt=0,
        le=600,
    )
    threads_max: int = setting(
        32,
        "Hooks that are plain functions (`BlockingBrokerHooks`) and may run at the same time, each in a thread. A function "
        "that never returns keeps its thread; with all of them kept `/readyz` fails.",
        ge=1,
        le=1_000,
    )
    handover_window: int = setting(
        64,
        "Hand-overs of a shutdown that run at once: upstream's number for overrides.",
        pip_192="loadBalancerServiceUnitStateMaxConcurrentOverrides",
        ge=1,
    )
    shutdown_budget_s: float = setting(
        60.0, "Time for an ordered shutdown; what is not handed over by then is repaired by the leader.", gt=0, le=3_600
    )


class SafeModeSettings(SettingsGroup):
    """What a broker does while Kafka is away."""

    after_s: float = setting(
        4.0,
        "Without its own heartbeat read back for this long a broker goes to safe mode: before the others miss it.",
        ge=0.2,
        le=600,
    )
    settle_s: float = setting(
        10.0,
        "After Kafka's return: longest wait until all registered brokers are heard again. Nobody is declared lost "
        "before; PIP-192 waits two to three minutes.",
        pip_192="MAX_CLEAN_UP_DELAY_TIME_IN_SECS",
        ge=0,
        le=600,
    )
    lease_s: float | None = setting(
        None,
        "An owner that is cut off stops serving after this long, counted from the sending of its newest heartbeat that "
        "was read back. None: it goes on serving, and storage fences it by generation.",
        gt=0,
    )


class RepairSettings(SettingsGroup):
    """What the leader does about bundles that nobody serves."""

    interval_s: float = setting(1.0, "Time between two looks at what is stuck or orphaned.", ge=0.05, le=60)
    scan_interval_s: float = setting(
        30.0,
        "Time between two looks at every bundle, in case a notification was lost: half of upstream's.",
        pip_192="loadBalancerServiceUnitStateMonitorIntervalInSeconds",
        ge=1,
        le=3_600,
    )
    in_flight_limit_s: float = setting(
        30.0,
        "Age at which the leader repairs a state between two owners.",
        pip_192="loadBalancerInFlightServiceUnitStateWaitingTimeInMillis",
        gt=0,
        le=3_600,
    )
    batch_max: int = setting(
        1_024, "Repairs that may be on their way at once: 65,000 orphans take a minute at most.", ge=1
    )
    decline_memory_s: float = setting(
        30.0, "How long a broker that declined a bundle is left out for it: its cause has time to pass.", ge=0, le=3_600
    )
    mass_loss_window_s: float = setting(10.0, "Brokers that vanish within this time count together.", ge=1, le=600)
    mass_loss_fraction: float = setting(
        1 / 3,
        "When more than this share of the brokers, and at least two, vanish together, repair pauses: the cause is "
        "rather the network than the brokers.",
        gt=0,
        le=1,
    )
    mass_loss_pause_s: float = setting(60.0, "Longest pause of repair; a command ends it earlier.", ge=0, le=3_600)


class LimitSettings(SettingsGroup):
    """Bounds of queues, retries and memory."""

    retry_interval_s: float = setting(0.5, "Time before a record that lost a race is proposed again.", ge=0.01, le=60)
    unknown_limit_s: float = setting(
        60.0, "An append without delivery report or read-back for this long is answered as unknown.", gt=0, le=3_600
    )
    pending_max: int = setting(4_096, "Own records on their way at once; more wait.", ge=1)
    kept_records_max: int = setting(
        1_000_000, "Records that a joining reader keeps aside; with more it starts over.", ge=1_000
    )
    kept_max_mib: int = setting(
        256, "Likewise by the size of their values, so that few large records are no more than many small ones.", ge=16
    )
    split_parts_max: int = setting(
        4_096,
        "Parts that one split may make; more are refused, and a foreign wish for more is given up: each part is a hook "
        "and a record's line, and one step of the loop makes them all.",
        ge=2,
        le=32_768,
    )
    operations_max: int = setting(10_000, "Operations whose end is remembered for those who ask later.", ge=1)
    remembered_max: int = setting(
        10_000, "Processes that are remembered after they left or were lost, the newest of them.", ge=100
    )
    members_max: int = setting(
        2_000,
        "Brokers that may be heard at once; a newcomer beyond them is not taken in, and none of them makes room.",
        ge=10,
    )
    members_max_mib: int = setting(
        64, "Likewise by the size of their heartbeats; those of at most 64 KiB are kept in any case.", ge=1
    )
    replay_tail_records: int = setting(
        10_000,
        "Newest records from which a starting broker learns of operations that ended; the rest goes faster.",
        ge=1,
    )
    command_timeout_s: float = setting(
        60.0, "How long a command waits for its end unless it says otherwise.", gt=0, le=3_600
    )
    inbox_max: int = setting(
        20_000,
        "Inputs that may wait before the engine; a full inbox holds the Kafka reader back. Heartbeats wait behind a flood: "
        "these take well under a second.",
        ge=1_000,
    )
    inbox_max_mib: int = setting(
        64, "Likewise by the size of their values: twenty thousand large records would fill any memory.", ge=1
    )
