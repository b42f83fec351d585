"""The simulator's prediction of a run of live brokers with synthetic load, and how far the two differ.

The trace is the same functions of seed, topic and time (`loaddata.measure.synthetic`) as the load of the brokers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import TYPE_CHECKING, Final

import numpy as np

from loaddata.measure.synthetic import SimulatedHost, SimulatedSettings
from shedders.contest.outcome import RunOutcome
from shedders.contest.plots import Plot
from shedders.contest.trace import CORE, Costs, Namespace, Trace, TraceMachine, Units
from statechannel.protocol.bundle import FULL_UPPER, bundle_key, topic_hash
from tests.support.live_plot import LoadLines, MoveTicks, live_plot

if TYPE_CHECKING:
    from shedders.contest.trace import Floats

SESSIONS: Final = 3
"""Of a topic: a producer and two consumers."""


def synthetic_trace(
    settings: SimulatedSettings,
    seed: int,
    *,
    brokers: Sequence[str],
    namespaces: Sequence[Namespace],
    begin_s: float,
    steps: int,
    step_s: float,
    disturbed_s: Sequence[float] = (),
) -> Trace:
    """Trace of a live cluster with synthetic load.

    Args:
        settings: As the brokers have them; `seed` likewise.
        brokers: All of them are there from the start, with the machine that `SimulatedHost` makes up.
        namespaces: With the owners of their bundles at the start.
        begin_s: Time of the first step by the clock that the brokers share, seconds since 1970.
        disturbed_s: When balance is upset, in seconds from the start.
    """
    now_s = begin_s
    whole = [bundle_key(namespace.name, 0, FULL_UPPER) for namespace in namespaces]
    source, host = settings.source(seed, lambda: whole, lambda: now_s)
    busy = (100.0 - host.idle_percent) / 100.0
    cpu = CORE * host.cores * busy / host.msg_rate_max

    def rows(step: int) -> Floats:
        nonlocal now_s
        now_s = begin_s + step * step_s
        rates = np.array([topic[1:] for key in whole for topic in source.topics(key)], dtype=np.float64)
        msg_in, msg_out, bytes_in, bytes_out = rates.reshape(-1, 4).T
        return np.stack([msg_in, msg_out, bytes_in, bytes_out, (msg_in + msg_out) * cpu, np.zeros(len(rates))])

    topics = [(number, topic_hash(topic.name)) for number, key in enumerate(whole) for topic in source.topics(key)]
    return Trace(
        name="made-up",
        about="Load as brokers with `source = simulated` make it up.",
        seed=seed,
        step_s=step_s,
        steps=steps,
        machines=[_machine(name, host) for name in sorted(brokers)],
        namespaces=namespaces,
        units=Units(
            np.array([number for number, _ in topics]),
            np.array([position for _, position in topics]),
            np.full(len(topics), SESSIONS, dtype=np.int64),
        ),
        rows=rows,
        disturbances=(0.0, *disturbed_s),
        # The made-up machine of a broker does not feel clients that connect again.
        costs=Costs(reconnect_cpu_s=0.0),
    )


def _machine(name: str, host: SimulatedHost) -> TraceMachine:
    return TraceMachine(
        name,
        cores=host.cores,
        memory_mib=host.memory_mib,
        bandwidth_in_kbit=host.bandwidth_kbit,
        bandwidth_out_kbit=host.bandwidth_kbit,
        idle_percent=host.idle_percent,
    )


def prediction_plot(live: LoadRun, foretold: LoadRun, marks: Mapping[str, float], title: str) -> Plot:
    """The loads of a live run, and those that the simulator has foretold, on the same axes.

    Args:
        marks: Times with words for what was done then.
    """
    return live_plot(
        title,
        [
            LoadLines(live.at_s, live.loads, ", live"),
            LoadLines(foretold.at_s, foretold.loads, ", simulated", dashed=True),
        ],
        [
            MoveTicks("moves, live (above)", live.moved_s, 0.05),
            MoveTicks("moves, simulated (below)", foretold.moved_s, 0.015),
        ],
        [(at_s, text) for text, at_s in marks.items()],
    )


CLOSE: Final = 0.05
"""Largest distance of the maximum from the mean load, as a share of a machine, that counts as settled."""


@dataclass(frozen=True, slots=True)
class LoadRun:
    """Loads over time, live or simulated.

    Attributes:
        at_s: Ascending.
        loads: By broker; None where nothing is known.
        moved_s: Time of each move.
    """

    at_s: Sequence[float]
    loads: Mapping[str, Sequence[float | None]]
    moved_s: Sequence[float]

    @classmethod
    def of(cls, outcome: RunOutcome, begun_s: float = 0.0) -> LoadRun:
        """A run of the simulator.

        Args:
            begun_s: When it began, by the time of the run that it is held against.
        """
        at_s = [begun_s + moment for moment in outcome.series.at_s]
        return cls(at_s, outcome.series.loads, [begun_s + move.at_s for move in outcome.moves])

    def at(self, at_s: float) -> dict[str, float]:
        """Each broker's load at a time: as it was last known then."""
        place = bisect_right(self.at_s, at_s) - 1
        if place < 0:
            return {}
        return {name: load for name, loads in self.loads.items() if (load := loads[place]) is not None}


@dataclass(frozen=True, slots=True)
class LoadDifferences:
    """Loads are parts of a machine; differences are means over time of what they are at each moment, without sign.

    Attributes:
        by_rank: Between the busiest brokers of both, the second busiest, and so on.
        by_broker: Between the same brokers.
        largest: Between the largest loads.
        apart_live, apart_foretold: Largest over smallest load at the end, as a difference.
        moves_live, moves_foretold: Since `since_s`.
        settle_live_s, settle_foretold_s: From `since_s` until the largest load stays close to the mean; None: it never does.
    """

    by_rank: float
    by_broker: float
    largest: float
    apart_live: float
    apart_foretold: float
    moves_live: int
    moves_foretold: int
    settle_live_s: float | None
    settle_foretold_s: float | None


def differences(live: LoadRun, foretold: LoadRun, since_s: float) -> LoadDifferences:
    """Compare, at the moments of the live run.

    Args:
        since_s: When balance was upset: moves and the time to settle are counted from then.

    Raises:
        ValueError: The runs have no moment in common.
    """
    moments = [(live.at(at_s), foretold.at(at_s)) for at_s in live.at_s]
    both = [(moment, other) for moment, other in moments if moment and moment.keys() == other.keys()]
    if not both:
        raise ValueError("the runs have no common moment at which all loads are known")
    ranks = [_apart(sorted(load.values()), sorted(other.values())) for load, other in both]
    brokers = [_apart(list(load.values()), [other[name] for name in load]) for load, other in both]
    return LoadDifferences(
        by_rank=_mean(ranks),
        by_broker=_mean(brokers),
        largest=_mean([abs(max(load.values()) - max(other.values())) for load, other in both]),
        apart_live=_spread(both[-1][0]),
        apart_foretold=_spread(both[-1][1]),
        moves_live=sum(at_s >= since_s for at_s in live.moved_s),
        moves_foretold=sum(at_s >= since_s for at_s in foretold.moved_s),
        settle_live_s=settled_s(live, since_s),
        settle_foretold_s=settled_s(foretold, since_s),
    )


def settled_s(run: LoadRun, since_s: float) -> float | None:
    """Seconds from a time until the largest load stays close to the mean (`CLOSE`); None: it does not to the end."""
    since: float | None = None
    for at_s in run.at_s:
        loads = run.at(at_s)
        if at_s < since_s or not loads:
            continue
        if max(loads.values()) - _mean(list(loads.values())) > CLOSE:
            since = None
        elif since is None:
            since = at_s - since_s
    return since


def _apart(own: Sequence[float], other: Sequence[float]) -> float:
    return _mean([abs(a - b) for a, b in zip(own, other, strict=True)])


def _mean(values: Sequence[float]) -> float:
    return fsum(values) / len(values)


def _spread(loads: Mapping[str, float]) -> float:
    return max(loads.values()) - min(loads.values())
