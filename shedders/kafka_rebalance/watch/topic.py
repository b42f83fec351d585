"""Topic of the autopilot: one state, written by the one watcher that holds it. Compacted, one partition.

Key `state`: state of the autopilot, by its holder; also its sign of life. Key `claim`: a watcher takes over.

The order of the log decides. A claim has the next generation and names the record that it follows (`base`); it counts if that
is the newest one that counts, and its watcher has left, is dead on the same host, or was silent for `away_s` of log time. A
state counts unless its generation is older than the newest. So of two claims one counts, and a watcher that was replaced
cannot write. A rejected state could displace the one that counts once the log is compacted, which is not before an hour
(`min.compaction.lag.ms`): the holder then writes its state again.
"""

from __future__ import annotations

import base64
import os
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson
import psutil

from shedders.kafka_rebalance.errors import PartitionsError
from shedders.kafka_rebalance.execution.planner_topic import PlannerTopic
from shedders.kafka_rebalance.execution.session import host_name
from shedders.kafka_rebalance.watch.values import WatchState
from statechannel.errors import ExitCode
from statechannel.kafka.topic_policy import watch_topic

if TYPE_CHECKING:
    from statechannel.kafka.client_settings import ClientSettings

VERSION: Final = 1
STATE: Final = b"state"
CLAIM: Final = b"claim"
NO_BASE: Final = -1
_NUMBER_MAX: Final = 2**53


class WatchStateUnusableError(PartitionsError):
    """The topic's newest state cannot be parsed; without it the autopilot does not act."""

    exit_code = ExitCode.REJECTED


class WatchStateNewerError(PartitionsError):
    """A newer version has written to the topic; this one cannot know who acts, nor what was spent, and does not act."""

    exit_code = ExitCode.NEWER_FORMAT


@dataclass(frozen=True, slots=True, kw_only=True)
class WatcherIdentity:
    """One process that watches. `host`: see `session.host_name`; `name`: for people and for the log."""

    name: str
    host: str
    pid: int

    @classmethod
    def of_this_process(cls, name: str) -> WatcherIdentity:
        """The identity of this process."""
        return cls(name=name, host=host_name(), pid=os.getpid())

    def is_dead(self) -> bool:
        """Whether it was a process of this host that is gone."""
        return self.host == host_name() and not psutil.pid_exists(self.pid)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchHolder:
    """Watcher that holds the autopilot, by the log."""

    watcher: WatcherIdentity
    generation: int
    offset: int
    seen_at_ms: int
    left: bool = False


class WatchBook:
    """Fold of the topic's records. Pure.

    Args:
        away_s: Silence after which a holder may be replaced.

    Attributes:
        holder: Present holder, alive or not; None: there was never one.
        mended: Whether the newest state of the log counts, so that compaction keeps it.
        newer: Newest version of records that this one cannot parse; None: there are none.
        junk: Records that are invalid.
    """

    def __init__(self, away_s: float) -> None:
        self._away_ms = round(away_s * 1_000)
        self.holder: WatchHolder | None = None
        self._packed: str | None = None
        self._state_of: tuple[str, WatchState] | None = None
        self.mended = True
        self.newest_ms = 0
        self.newer: int | None = None
        self.junk = 0

    def take(self, offset: int, timestamp_ms: int, key: bytes | None, value: bytes | None) -> None:
        """Fold a record, in log order; invalid ones are counted."""
        if self.holder is not None and self.holder.seen_at_ms > timestamp_ms:
            # Kafka's clock was set back: else a holder that is gone would seem alive until its last time comes.
            self.holder = replace(self.holder, seen_at_ms=timestamp_ms)
        self.newest_ms = timestamp_ms
        try:
            record = orjson.loads(value or b"")
            version = record["v"]
            if type(version) is int and version > VERSION and key in {STATE, CLAIM}:
                self.newer = max(version, self.newer or version)
                return
            if version != VERSION or key not in {STATE, CLAIM}:
                self.junk += 1
                return
            watcher = WatcherIdentity(name=str(record["watcher"]), host=str(record["host"]), pid=_number(record["pid"]))
            generation = _number(record["generation"])
            if key == CLAIM:
                base = _number(record["base"])
                self._claim(offset, timestamp_ms, watcher, generation, base, str(record["replaces"]))
            else:
                left = bool(record["left"])
                self._take_state(offset, timestamp_ms, watcher, generation, str(record["state"]), left=left)
        except (KeyError, TypeError, ValueError):
            self.junk += 1

    @property
    def state(self) -> WatchState | None:
        """Newest state that counts; None: none was written. It is parsed only here: a log has thousands of them.

        Raises:
            WatchStateUnusableError: It cannot be parsed.
        """
        if self._packed is None:
            return None
        if self._state_of is None or self._state_of[0] != self._packed:
            self._state_of = (self._packed, _unpacked(self._packed))
        return self._state_of[1]

    def require_known(self) -> None:
        """Refuse to go on where a newer version has written.

        Raises:
            WatchStateNewerError: One has.
        """
        if self.newer is not None:
            raise WatchStateNewerError(
                f"the topic of the autopilot has records of version {self.newer}; this program knows {VERSION}",
                hint="Run the newer version of statechannel on every host that watches this cluster.",
            )

    def alive(self, now_ms: int) -> WatchHolder | None:
        """Holder that is alive at a time of the log."""
        holder = self.holder
        if holder is None or holder.left or now_ms - holder.seen_at_ms > self._away_ms:
            return None
        return holder

    def _claim(
        self, offset: int, at_ms: int, watcher: WatcherIdentity, generation: int, base: int, replaces: str
    ) -> None:
        holder = self.holder
        if base != (NO_BASE if holder is None else holder.offset):
            return
        if holder is not None:
            alive = self.alive(at_ms)
            if generation != holder.generation + 1 or (alive is not None and alive.watcher.name != replaces):
                return
        self.holder = WatchHolder(watcher=watcher, generation=generation, offset=offset, seen_at_ms=at_ms)

    def _take_state(
        self, offset: int, at_ms: int, watcher: WatcherIdentity, generation: int, packed: str, *, left: bool
    ) -> None:
        holder = self.holder
        if holder is not None and generation < holder.generation:
            self.mended = False
            return
        self.holder = WatchHolder(watcher=watcher, generation=generation, offset=offset, seen_at_ms=at_ms, left=left)
        self._packed, self.mended = packed, True


def _number(value: object) -> int:
    """A whole number that every part of the autopilot can hold.

    Raises:
        ValueError: It is none.
    """
    if type(value) is not int or abs(value) > _NUMBER_MAX:
        raise ValueError(f"{value!r:.100} is not a whole number within bounds")
    return value


def claim_record(watcher: WatcherIdentity, holder: WatchHolder | None) -> tuple[bytes, bytes]:
    """Key and value of a claim of what `holder` has."""
    dead = holder is not None and holder.watcher.is_dead()
    return CLAIM, _record(
        watcher,
        1 if holder is None else holder.generation + 1,
        base=NO_BASE if holder is None else holder.offset,
        replaces=holder.watcher.name if holder is not None and dead else "",
    )


def state_record(
    watcher: WatcherIdentity, generation: int, state: WatchState, *, left: bool = False
) -> tuple[bytes, bytes]:
    """Key and value of a state; `left`: the watcher ends, and any other may take over at once."""
    return STATE, _record(watcher, generation, state=_packed(state), left=left)


def _record(watcher: WatcherIdentity, generation: int, **facts: Any) -> bytes:
    identity = {"watcher": watcher.name, "host": watcher.host, "pid": watcher.pid}
    return orjson.dumps({"v": VERSION, **identity, "generation": generation, **facts})


def _packed(state: WatchState) -> str:
    return base64.b64encode(zlib.compress(orjson.dumps(state.to_json()), 6)).decode()


def _unpacked(text: str) -> WatchState:
    try:
        return WatchState.from_json(orjson.loads(zlib.decompress(base64.b64decode(text))))
    except (AttributeError, KeyError, TypeError, ValueError, zlib.error) as error:
        raise WatchStateUnusableError(
            f"the state of the autopilot cannot be parsed ({type(error).__name__}: {error})",
            hint="Another program wrote to its topic: use another one, extensions.partitions.watch.topic. "
            "What it has spent and moved is forgotten then.",
        ) from None


class WatchLog(Protocol):
    """Port to the autopilot's topic."""

    def read(self) -> WatchBook:
        """Fold new records up to the present end."""

    def append(self, record: tuple[bytes, bytes]) -> None:
        """Write a record and wait for its acknowledgement."""


class WatchTopic(PlannerTopic):
    """Reader and writer of the topic.

    Args:
        settings: Connection settings of Kafka.
        name: Name of the topic.
        away_s: Silence after which a holder may be replaced.
        timeout_s: Time limit of one answer.
    """

    def __init__(self, settings: ClientSettings, name: str, *, away_s: float, timeout_s: float = 20.0) -> None:
        super().__init__(settings, watch_topic(name), timeout_s)
        self._away_s = away_s
        self.book = WatchBook(away_s)

    def _forget(self) -> None:
        self.book = WatchBook(self._away_s)

    def read(self) -> WatchBook:
        """Read new records up to the present end.

        Raises:
            KafkaAdapterError: Kafka is out of reach, or the topic is missing.
        """
        for record in self._new_records():
            self.book.take(record.offset, record.timestamp_ms, record.key, record.value)
        return self.book

    def append(self, record: tuple[bytes, bytes]) -> None:
        """Write a record and wait for its acknowledgement.

        Raises:
            AppendOutcomeUnknownError: No answer in time; the record may have been written or not.
            KafkaAdapterError: Kafka refused it.
        """
        self._write([record])
