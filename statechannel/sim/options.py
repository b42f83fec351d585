"""What an engine-level run is made of: drawn from the seed, overridden by `--set`."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from statechannel.engine.config import EngineConfig

LAG_S = 20.0
TOMBSTONE_S = 2_000.0
DELIVERY_TIMEOUT_S = 3.0
SESSION_TIMEOUT_S = 3.0
LEASE_S = 4.0
SLEEPERS_SHARE = 0.15
FORGERS_SHARE = 0.25
LATER_SHARE = 0.3
BLACKOUTS_SHARE = 0.35
TRICKLE_SHARE = 0.15
FALSE_MARKS_SHARE = 0.2
LATE_RETURNS_SHARE = 0.25
LATE_LOSERS_SHARE = 0.2
DEAF_JOINERS_SHARE = 0.15
REGISTRY_FLOODS_SHARE = 0.15
SICK_OWNERS_SHARE = 0.2
SICK_STARTERS_SHARE = 0.2


ENDS = (
    "late_returns",
    "late_losers",
    "sick",
    "deaf_joiners",
    "registry_floods",
    "trickle",
    "sick_owners",
    "sick_starters",
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
        reopened: Readers are opened anew though no engine asked for it, as after the failure of a thread.
        blackouts: Everybody dies at once, for any time at all.
        trickle: Once all are well, junk trickles while one joins.
        false_marks: Strangers write marks of cold starts, and what is none.
        late_returns: One sleeps and all others die, and come back only when the log does not vouch any more.
        late_losers: Everybody dies at once, and late proposals that lost their race are what nobody has paid.
        deaf_joiners: Once all are well, one joins that does not hear itself in the registry, while junk trickles.
        registry_floods: Once all are well, junk comes in the registry faster than it can be taken in.
        sick_owners: One that owns bundles is sick again when all others are judged, and nobody asks it for them.
        sick_starters: One that owns bundles dies when all others are judged, and what starts in its place never hears itself.
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
    forgiving: bool = False


def draw_engine(seed: int) -> EngineOptions:
    rng = Random(f"engine options {seed}")
    later = Random(f"single connections {seed}")
    clients = Random(f"clients {seed}")

    def on(chance: float = 0.7) -> bool:
        return rng.random() < chance

    return EngineOptions(
        duration_s=rng.choice((30, 60, 60, 120)),
        brokers=rng.randint(2, 4),
        partitions=rng.choice((1, 1, 2)),
        namespaces=rng.randint(1, 2),
        bundles=rng.randint(1, 4),
        copies=rng.choice((1, 1, 2)),
        fault_every_s=rng.choice((1.0, 2.5, 2.5, 6.0)),
        command_every_s=rng.choice((0.3, 0.8, 2.0)),
        crashes=on(),
        outages=on(0.2),
        pauses=on(),
        cuts=on(),
        slow=on(0.4),
        twins=on(0.5),
        take_overs=on(0.3),
        shutdowns=on(0.4),
        newcomers=on(),
        elections=on(0.5),
        lost_reports=on(),
        hook_faults=on(0.5),
        cleaner=on(0.9),
        junk=on(0.5),
        hostile=on(0.5),
        replays=on(0.5),
        splits=on(0.8),
        transfers=on(0.9),
        deletions=on(0.6),
        lease=on(0.25),
        # Drawn apart: it came later, and the seeds of the corpus are to mean what they meant.
        sleepers=Random(f"sleepers {seed}").random() < SLEEPERS_SHARE,
        forgers=Random(f"forgers {seed}").random() < FORGERS_SHARE,
        links=later.random() < LATER_SHARE,
        hangs=later.random() < LATER_SHARE,
        lags=later.random() < LATER_SHARE,
        sick=later.random() < LATER_SHARE,
        nameless_reports=clients.random() < LATER_SHARE,
        reopened=clients.random() < LATER_SHARE,
        blackouts=Random(f"blackouts {seed}").random() < BLACKOUTS_SHARE,
        trickle=Random(f"trickle {seed}").random() < TRICKLE_SHARE,
        false_marks=Random(f"false marks {seed}").random() < FALSE_MARKS_SHARE,
        late_returns=Random(f"late returns {seed}").random() < LATE_RETURNS_SHARE,
        late_losers=Random(f"late losers {seed}").random() < LATE_LOSERS_SHARE,
        deaf_joiners=Random(f"deaf joiners {seed}").random() < DEAF_JOINERS_SHARE,
        registry_floods=Random(f"registry floods {seed}").random() < REGISTRY_FLOODS_SHARE,
        sick_owners=Random(f"sick owners {seed}").random() < SICK_OWNERS_SHARE,
        sick_starters=Random(f"sick starters {seed}").random() < SICK_STARTERS_SHARE,
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
    )
