"""Sizes and faults of a run of either level: drawn from the seed, overridden by `--set`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from statechannel.engine.config import EngineConfig

LAG_S = 20.0
TOMBSTONE_S = 2_000.0
DELIVERY_TIMEOUT_S = 3.0
SESSION_TIMEOUT_S = 3.0
LEASE_S = 4.0
LATER_SHARE = 0.3
FIRST_SHARES = {
    "crashes": 0.7, "outages": 0.2, "pauses": 0.7, "cuts": 0.7, "slow": 0.4, "twins": 0.5, "take_overs": 0.3,
    "shutdowns": 0.4, "newcomers": 0.7, "elections": 0.5, "lost_reports": 0.7, "hook_faults": 0.5, "cleaner": 0.9,
    "junk": 0.5, "hostile": 0.5, "replays": 0.5, "splits": 0.8, "transfers": 0.9, "deletions": 0.6, "lease": 0.25,
}  # fmt: skip
FIRST_PROTOCOL_SHARES = {
    "junk": 0.75, "hostile": 0.75, "replays": 0.75, "delays": 0.75, "pauses": 0.75, "joins": 0.9, "cleaner": 0.9,
    "purges": 0.75, "deletion": 0.75, "splits": 0.75, "jumps": 0.75, "newer": 0.05,
}  # fmt: skip
"""Shares of the runs with an option, drawn in this order by one generator."""

SHARES = {
    "sleepers": 0.15, "forgers": 0.25, "blackouts": 0.35, "trickle": 0.15, "false_marks": 0.2, "late_returns": 0.25,
    "late_losers": 0.2, "deaf_joiners": 0.15, "registry_floods": 0.15, "sick_owners": 0.2, "sick_starters": 0.2,
    "split_hooks": 0.5, "observer": 0.4, "transactions": 0.25, "lost_heads": 0.15,
    "joint_shutdowns": 0.3, "added_partitions": 0.25, "bent_views": 0.2,
}  # fmt: skip
PROTOCOL_SHARES = {"outages": 0.5, "false_marks": 0.25, "transactions": 0.3}
"""Options that came later. Each is drawn by itself, so that the seeds of the corpus mean what they meant."""


ENDS = (
    "late_returns",
    "late_losers",
    "sick",
    "deaf_joiners",
    "registry_floods",
    "trickle",
    "sick_owners",
    "sick_starters",
    "lost_heads",
    "bent_views",
    "joint_shutdowns",
)
"""Options that add something to the end of a run, once all processes are well."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Sizes and faults of one run (swarm testing: each seed leaves some out).

    Attributes:
        duration_s: Virtual time of the phase with faults.
        fault_every_s, command_every_s: Mean time between planned faults, and between commands.
        links: Single connections are cut: writing or reading one partition, the registry, the election.
        hangs: Loops hang while their election lives.
        lags: Readers are behind for longer than anybody's patience.
        sick: One member is sick again when all others are judged.
        nameless_reports: Delivery reports that do not say at which offset the record lies.
        reopened: Readers are reopened though no engine asked for it, as after the failure of a thread.
        blackouts: Everybody dies at once, for any time at all.
        trickle: Once all are well, junk trickles while one joins.
        false_marks: Strangers write marks of cold starts, and what is none.
        late_returns: One sleeps and all others die, and come back only when the log does not vouch any more.
        late_losers: Everybody dies at once, and late proposals that lost their race are the unpaid debts.
        deaf_joiners: Once all are well, one joins that does not hear itself in the registry, while junk trickles.
        registry_floods: Once all are well, junk comes in the registry faster than it can be taken in.
        sick_owners: One that owns bundles is sick again when all others are judged, and no request asks it for them.
        sick_starters: One that owns bundles dies when all others are judged, and what starts in its place never hears itself.
        added_partitions: Kafka's topic of the channel gets partitions while the channel is in use.
        bent_views: Once all are well, one member's view is bent: it holds a key as it was never accepted.
        transactions: A producer that this project did not write ends transactions on the channel's topic.
        observer: A process that only reads is asked for owners, and suffers as brokers do.
        lost_heads: Once all are well, records are deleted from the heads of the channel's logs, and one joins.
        joint_shutdowns: Once all are well, members shut down or prepare to at the same moment, and no client looks a bundle up.
        forgiving: What a cold start changes without need is let pass, to see the harm that follows.
    """

    duration_s: int = 60
    brokers: int = 3
    partitions: int = 1
    namespaces: int = 2
    bundles: int = 3
    copies: int = 1
    fault_every_s: float = 2.5
    command_every_s: float = 0.8
    crashes: bool = True
    outages: bool = True
    pauses: bool = True
    cuts: bool = True
    slow: bool = True
    twins: bool = True
    take_overs: bool = True
    shutdowns: bool = True
    newcomers: bool = True
    elections: bool = True
    lost_reports: bool = True
    hook_faults: bool = True
    cleaner: bool = True
    junk: bool = True
    hostile: bool = True
    replays: bool = True
    splits: bool = True
    transfers: bool = True
    deletions: bool = True
    lease: bool = False
    sleepers: bool = False
    forgers: bool = False
    links: bool = False
    hangs: bool = False
    lags: bool = False
    sick: bool = False
    nameless_reports: bool = False
    reopened: bool = False
    blackouts: bool = False
    trickle: bool = False
    false_marks: bool = False
    late_returns: bool = False
    late_losers: bool = False
    deaf_joiners: bool = False
    registry_floods: bool = False
    sick_owners: bool = False
    sick_starters: bool = False
    split_hooks: bool = False
    observer: bool = False
    transactions: bool = False
    added_partitions: bool = False
    bent_views: bool = False
    lost_heads: bool = False
    joint_shutdowns: bool = False
    forgiving: bool = False


def _draw_later(shares: Mapping[str, float], seed: int) -> dict[str, bool]:
    return {name: Random(f"{name.replace('_', ' ')} {seed}").random() < share for name, share in shares.items()}


def draw_engine(seed: int) -> EngineOptions:
    rng = Random(f"engine options {seed}")
    later = Random(f"single connections {seed}")
    clients = Random(f"clients {seed}")

    return EngineOptions(
        duration_s=rng.choice((30, 60, 60, 120)),
        brokers=rng.randint(2, 4),
        partitions=rng.choice((1, 1, 2)),
        namespaces=rng.randint(1, 2),
        bundles=rng.randint(1, 4),
        copies=rng.choice((1, 1, 2)),
        fault_every_s=rng.choice((1.0, 2.5, 2.5, 6.0)),
        command_every_s=rng.choice((0.3, 0.8, 2.0)),
        **{name: rng.random() < share for name, share in FIRST_SHARES.items()},
        **{name: later.random() < LATER_SHARE for name in ("links", "hangs", "lags", "sick")},
        **{name: clients.random() < LATER_SHARE for name in ("nameless_reports", "reopened")},
        **_draw_later(SHARES, seed),
    )


def engine_config(options: EngineOptions, *, take_over: bool) -> EngineConfig:
    """Limits that fit a run of a minute or two; the relations between them are those of the defaults."""
    return EngineConfig(
        partitions=options.partitions,
        compaction_lag_s=LAG_S,
        member_expiry_s=6.0,
        safe_after_s=3.0,
        settle_s=3.0,
        take_over=take_over,
        hook_deadline_s=2.0,
        in_flight_limit_s=8.0,
        unknown_limit_s=10.0,
        scan_interval_s=10.0,
        mass_loss_pause_s=8.0,
        decline_memory_s=4.0,
        purge_interval_s=5.0,
        purge_deleted_after_s=60.0,
        cold_start_after_s=5.0,
        replay_tail_records=20,
        closing_mark_s=20.0,
        lease_s=LEASE_S if options.lease else None,
        split_hooks=options.split_hooks,
    )


NAMESPACES = ("t/one", "t/two", "u/three")


@dataclass(frozen=True, slots=True)
class ProtocolOptions:
    """What a run is made of; the seed draws them, `--set` overrides them."""

    steps: int = 240
    partitions: int = 1
    members: int = 3
    namespaces: int = 2
    bundles: int = 3
    copies: int = 1
    step_ms: int = 800
    segment_ms: int = 5_000
    junk: bool = True
    hostile: bool = True
    replays: bool = True
    delays: bool = True
    pauses: bool = True
    joins: bool = True
    cleaner: bool = True
    purges: bool = True
    deletion: bool = True
    splits: bool = True
    jumps: bool = True
    newer: bool = False
    outages: bool = False
    false_marks: bool = False
    transactions: bool = False


def draw_protocol(seed: int) -> ProtocolOptions:
    rng = Random(f"protocol options {seed}")

    return ProtocolOptions(
        steps=rng.choice((120, 240, 240, 400)),
        partitions=rng.choice((1, 1, 2)),
        members=rng.randint(2, 4),
        namespaces=rng.randint(1, len(NAMESPACES)),
        bundles=rng.randint(1, 4),
        copies=rng.choice((1, 1, 2)),
        step_ms=rng.choice((200, 800, 2_000, 6_000)),
        segment_ms=rng.choice((500, 5_000, 20_000)),
        **{name: rng.random() < share for name, share in FIRST_PROTOCOL_SHARES.items()},
        **_draw_later(PROTOCOL_SHARES, seed),
    )
