"""The health of one process: whether it stands for leader, leads in place of one that is not heard, and takes bundles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from statechannel.engine.config import EngineConfig

BACKUP_AFTER_INTERVALS = 3
"""A member that does not lead writes a heartbeat after this number of silent intervals, and one more for each rank."""
DEPUTY_AFTER_EXPIRIES = 2


@dataclass(frozen=True, slots=True)
class SeatBounds:
    """How much silence is borne, in seconds; all derived from the expiry and the interval of the heartbeats.

    Attributes:
        registry_s: Own silence in the registry from which the others call this process lost.
        recovery_s: Longest time in which a process that hears the registry again is back in normal mode.
        probe_s: Age of an own channel record that is not read back, from which a heartbeat is written to find out.
        unheard_s: Silence of a channel partition, of all writers, from which this process may be the one that is cut off.
        echo_s: Age of an own channel record from which this process is taken for unable to write or read.
        deputy_s: Time without a leader after which the member of rank 0 acts; each further rank waits an expiry longer.
    """

    registry_s: float
    recovery_s: float
    probe_s: float
    unheard_s: float
    echo_s: float
    deputy_s: float
    deputy_rank_s: float

    @classmethod
    def of(cls, config: EngineConfig) -> SeatBounds:
        expiry_s = config.member_expiry_s
        backup_s = BACKUP_AFTER_INTERVALS * config.heartbeat_interval_s
        return cls(
            registry_s=expiry_s,
            recovery_s=expiry_s + config.settle_s,
            probe_s=expiry_s,
            unheard_s=expiry_s + backup_s,
            echo_s=2 * expiry_s + backup_s,
            deputy_s=DEPUTY_AFTER_EXPIRIES * expiry_s,
            deputy_rank_s=expiry_s,
        )


class Health(NamedTuple):
    """What a process knows of itself and of who else could lead.

    Attributes:
        registry_silence_s: Since the send time of the newest own registry record that was read back.
        echo_age_s: Age of the oldest own channel record that was not read back.
        unheard_s: Since anything at all was read of the quietest channel partition.
        others_fit: Another member says that it could lead.
    """

    normal: bool
    registry_silence_s: float
    echo_age_s: float
    unheard_s: float
    others_fit: bool


class Seat:
    """Whether the health of this process lets it stand for leader.

    Who withdrew stands again only in normal mode and with its channel records read back, so that a process whose writes
    never arrive never comes back. The election is sticky: who stands again takes nothing from the one that sits.

    Attributes:
        withdrawn: Why this process does not stand; None while it may.
        fit: Whether it could lead, as its heartbeats say.
        writes: Whether its channel records come back in time: a broker that says no is given no bundles.
    """

    def __init__(self, bounds: SeatBounds) -> None:
        self.bounds = bounds
        self.withdrawn: str | None = None
        self.fit = True
        self.writes = True
        self._normal_at_s = 0.0

    def check(self, now_s: float, health: Health) -> None:
        bounds = self.bounds
        if health.normal:
            self._normal_at_s = now_s
        if self.withdrawn is None:
            self.withdrawn = self._sickness(now_s, health)
        elif health.normal and health.echo_age_s <= bounds.probe_s:
            self.withdrawn = None
        self.writes = health.echo_age_s <= bounds.echo_s
        self.fit = self.withdrawn is None and self.writes and health.unheard_s <= bounds.unheard_s

    def _sickness(self, now_s: float, health: Health) -> str | None:
        bounds = self.bounds
        if health.registry_silence_s > bounds.registry_s:
            return f"own registry records were not read back for {health.registry_silence_s:.1f} s"
        if now_s - self._normal_at_s > bounds.recovery_s:
            return f"not in normal mode for {now_s - self._normal_at_s:.1f} s"
        if health.echo_age_s > bounds.echo_s and health.others_fit:
            # Where all are cut off from a partition, a change of the leader does not help.
            return f"own channel records were not read back for {health.echo_age_s:.1f} s"
        return None


class Deputy:
    """Acts for a leader that is not heard although the election still seats it, or cannot seat another."""

    def __init__(self, bounds: SeatBounds) -> None:
        self._bounds = bounds
        self._leaderless_since_s: float | None = None
        self.acting = False

    def check(self, now_s: float, *, able: bool, led: bool, rank: int) -> bool:
        """Judge this moment; whether `acting` changed.

        Args:
            able: This process could lead: caught up, in normal mode, healthy.
            led: A leader, or a deputy of a lower rank, is heard.
            rank: Place of this process among the members that could lead.
        """
        if led or not able:
            self._leaderless_since_s = None
        elif self._leaderless_since_s is None:
            self._leaderless_since_s = now_s
        before, since_s = self.acting, self._leaderless_since_s
        patience_s = self._bounds.deputy_s + rank * self._bounds.deputy_rank_s
        self.acting = since_s is not None and (before or now_s - since_s >= patience_s)
        return self.acting is not before


OUTSTANDING_MAX = 64


class Echo:
    """Own records of each channel partition that were written and not read back.

    A record that was read back answers for all that were written before it: what a broker of Kafka refused never comes.
    """

    def __init__(self, partitions: int) -> None:
        self._sent_at_s: list[dict[str, float]] = [{} for _ in range(partitions)]
        self._newest_trip_s = [0.0] * partitions

    def written(self, partition: int, record_id: str, now_s: float) -> None:
        """A record was handed to the writer. Of too many every second is dropped: the oldest tells the age, newer ones end it."""
        sent = self._sent_at_s[partition]
        if len(sent) >= OUTSTANDING_MAX:
            for dropped in list(sent)[1::2]:
                del sent[dropped]
        sent.setdefault(record_id, now_s)

    def read_back(self, partition: int, record_id: str, now_s: float) -> float | None:
        """An own record was read; when it was written, None where that is not known any more."""
        sent = self._sent_at_s[partition]
        sent_at_s = sent.get(record_id)
        if sent_at_s is not None:
            self._newest_trip_s[partition] = now_s - sent_at_s
            while sent:
                first = next(iter(sent))
                del sent[first]
                if first == record_id:
                    break
        return sent_at_s

    def restarted(self, partition: int) -> None:
        """The partition was joined from its beginning: what lies in it was not read one by one."""
        self._sent_at_s[partition].clear()

    def age_s(self, partition: int, now_s: float) -> float:
        """Age of the oldest own record that should have been read back; 0 where none is outstanding."""
        oldest_s = next(iter(self._sent_at_s[partition].values()), now_s)
        return now_s - oldest_s

    @property
    def round_trip_s(self) -> float:
        """Time from writing the record that was read back last to reading it; of the slowest partition."""
        return max(self._newest_trip_s, default=0.0)

    def oldest_s(self, now_s: float) -> float:
        return max((self.age_s(partition, now_s) for partition in range(len(self._sent_at_s))), default=0.0)
