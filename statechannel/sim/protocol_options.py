"""What a run of the protocol level is made of: drawn from the seed, overridden by `--set`."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

NAMESPACES = ("t/one", "t/two", "u/three")
OUTAGES_SHARE = 0.5
FALSE_MARKS_SHARE = 0.25


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


def draw_protocol(seed: int) -> ProtocolOptions:
    """The options of a seed (swarm testing: each run leaves something out)."""
    rng = Random(f"protocol options {seed}")

    def on(chance: float = 0.75) -> bool:
        return rng.random() < chance

    return ProtocolOptions(
        steps=rng.choice((120, 240, 240, 400)),
        partitions=rng.choice((1, 1, 2)),
        members=rng.randint(2, 4),
        namespaces=rng.randint(1, len(NAMESPACES)),
        bundles=rng.randint(1, 4),
        copies=rng.choice((1, 1, 2)),
        step_ms=rng.choice((200, 800, 2_000, 6_000)),
        segment_ms=rng.choice((500, 5_000, 20_000)),
        junk=on(),
        hostile=on(),
        replays=on(),
        delays=on(),
        pauses=on(),
        joins=on(0.9),
        cleaner=on(0.9),
        purges=on(),
        deletion=on(),
        splits=on(),
        jumps=on(),
        newer=on(0.05),
        # Drawn apart: they came later, and the seeds of the corpus are to mean what they meant.
        outages=Random(f"outages {seed}").random() < OUTAGES_SHARE,
        false_marks=Random(f"false marks {seed}").random() < FALSE_MARKS_SHARE,
    )
