"""Invariants on membership and leadership: an unheard process does not lead, a member that is heard is not called lost."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import orjson

from statechannel.sim.violation import Violation

if TYPE_CHECKING:
    from statechannel.protocol.record import Record
    from statechannel.sim.cluster import SimCluster
    from statechannel.sim.process import SimProcess

SILENCE_AT_LEAST_S = 2.0
LOOK_BACK_S = 15.0
WELL_FOR_S = 15.0
HEARD_WITHIN_S = 5.0
"""By then a healthy member has sent several heartbeats, and every undisturbed process has read one."""


class PresenceChecks:
    """Reads the registry as it lands."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._heard_s: dict[str, list[float]] = {}
        self._left: set[str] = set()
        self._claims: set[tuple[str, str]] = set()

    def registered(self, value: bytes) -> None:
        """A registry record landed."""
        info: dict[str, Any] = orjson.loads(value)
        if info["kind"] != "member":
            return
        broker = info["broker"]
        self._heard_s.setdefault(broker, [-1e9]).append(self._cluster.events.now_s)
        if info["leaving"]:
            self._left.add(broker)
        if info["leading"]:
            self._claims.add((broker, info["incarnation"]))

    def stepped(self, process: SimProcess) -> None:
        """A leader acts only after its registry record was read back."""
        if process.engine.leading and (process.broker, process.incarnation) not in self._claims:
            raise Violation("leader", f"{process.name} leads, but its claim is not in the registry")

    def forced(self, record: Record) -> None:
        """A repair that calls a broker lost: that one must have been silent for a while not long ago."""
        about = record.raw.get("lost")
        if not record.forced or not isinstance(about, dict) or about.get("broker") in self._left:
            return
        # It may land long after it was written, so its own time counts.
        now_s = self._cluster.written_at_s(record)
        heard_s = self._heard_s.get(about["broker"], [])
        edges = [now_s - LOOK_BACK_S, *(when_s for when_s in heard_s if 0 < now_s - when_s < LOOK_BACK_S), now_s]
        silence_s = max(later - earlier for earlier, later in pairwise(edges))
        if silence_s < SILENCE_AT_LEAST_S:
            raise Violation("repair", f"{about} is called lost, but was never silent for more than {silence_s:.2f} s")

    def starts_cold(self, process: SimProcess) -> None:
        """A cold start is for when no caught-up member exists."""
        self._no_member_is_caught_up(process, "starts cold", WELL_FOR_S)

    def stands_to_start_cold(self, process: SimProcess) -> None:
        """A process that is not caught up stands for leader only for a cold start.

        A disturbed process is left out: it may hear no member.
        """
        if process.undisturbed:
            self._no_member_is_caught_up(process, "stands for leader without having caught up", HEARD_WITHIN_S)

    def _no_member_is_caught_up(self, process: SimProcess, does: str, well_for_s: float) -> None:
        now_s = self._cluster.events.now_s
        for other in self._cluster.alive():
            well = other.undisturbed and now_s - other.well_since_s > well_for_s
            if well and other is not process and other.engine.caught_up and other.engine.mode == "normal":
                raise Violation("cold-start", f"{process.name} {does} although {other.name} is caught up and well")
