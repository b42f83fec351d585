"""Trace of a live cluster with synthetic load: the same functions of seed, topic and time (`loaddata.measure.synthetic`).

It is used to compare a run of real broker processes with the simulator's prediction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from loaddata.measure.synthetic import SimulatedHost, SimulatedSettings
from shedders.contest.trace import CORE, Costs, Demand, Namespace, TraceEvent, TraceMachine, Units
from statechannel.protocol.bundle import FULL_UPPER, bundle_key, topic_hash

SESSIONS: Final = 3
"""Of a topic: a producer and two consumers."""


class SyntheticTrace:
    """See the module; `shedders.contest.trace.Trace` is the protocol.

    Args:
        settings: As the brokers have them; `seed` likewise.
        brokers: All of them are there from the start, with the machine that `SimulatedHost` makes up.
        namespaces: With the owners of their bundles at the start.
        begin_s: Time of the first step by the clock that the brokers share, seconds since 1970.
        disturbed_s: When balance is upset, in seconds from the start.
    """

    def __init__(
        self,
        settings: SimulatedSettings,
        seed: int,
        *,
        brokers: Sequence[str],
        namespaces: Sequence[Namespace],
        begin_s: float,
        steps: int,
        step_s: float,
        disturbed_s: Sequence[float] = (),
    ) -> None:
        self.name = "made-up"
        self.about = "Load as brokers with `source = simulated` make it up."
        self.seed = seed
        self.step_s = step_s
        self.steps = steps
        self.namespaces = namespaces
        self.events: Sequence[TraceEvent] = ()
        self.disturbances: Sequence[float] = (0.0, *disturbed_s)
        self.judged: Sequence[tuple[float, float]] = ()
        # The made-up machine of a broker does not feel clients that connect anew.
        self.costs = Costs(reconnect_cpu_s=0.0)
        self._begin_s = begin_s
        self._now_s = begin_s
        self._whole = [bundle_key(namespace.name, 0, FULL_UPPER) for namespace in namespaces]
        self._source, host = settings.source(seed, lambda: self._whole, lambda: self._now_s)
        self.machines = [_machine(name, host) for name in sorted(brokers)]
        busy = (100.0 - host.idle_percent) / 100.0
        self._cpu = CORE * host.cores * busy / host.msg_rate_max
        self.units = self._units()

    def demand(self, step: int) -> Demand:
        """See the protocol."""
        self._now_s = self._begin_s + step * self.step_s
        rates = np.array([topic[1:] for whole in self._whole for topic in self._source.topics(whole)], dtype=np.float64)
        msg_in, msg_out, bytes_in, bytes_out = rates.reshape(-1, 4).T
        return Demand(msg_in, msg_out, bytes_in, bytes_out, (msg_in + msg_out) * self._cpu, np.zeros(len(rates)))

    def _units(self) -> Units:
        spaces, places = [], []
        for number, whole in enumerate(self._whole):
            for topic in self._source.topics(whole):
                spaces.append(number)
                places.append(topic_hash(topic.name))
        return Units(np.array(spaces), np.array(places), np.full(len(spaces), SESSIONS, dtype=np.int64))


def _machine(name: str, host: SimulatedHost) -> TraceMachine:
    return TraceMachine(
        name,
        cores=host.cores,
        memory_mib=host.memory_mib,
        bandwidth_in_kbit=host.bandwidth_kbit,
        bandwidth_out_kbit=host.bandwidth_kbit,
        idle_percent=host.idle_percent,
    )
