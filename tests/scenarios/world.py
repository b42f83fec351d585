"""The world of a scenario: logs in memory, brokers with real engines, an election, and virtual time in tenths of a second.

Nothing here is random and nothing takes time by itself: what is sent arrives at once, unless the scenario says otherwise.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from statechannel.engine.commands import Command
from statechannel.engine.config import EngineConfig
from statechannel.engine.inputs import CommandReceived
from statechannel.protocol.bundle import parse_key, partition_of
from statechannel.protocol.codec import HEARTBEAT_KEY
from statechannel.protocol.digest import digest
from statechannel.protocol.log import Topic
from statechannel.protocol.view import View
from statechannel.protocol.view_rows import duplicate
from tests.scenarios import wording
from tests.scenarios.election import Election
from tests.scenarios.process import Process

ROUNDS_MAX = 1000

# Short limits, so that a story needs few seconds; the relations between them are those of the defaults.
SETTINGS: dict[str, Any] = {
    "member_expiry_s": 3.0,
    "safe_after_s": 2.0,
    "settle_s": 3.0,
    "hook_deadline_s": 2.0,
    "in_flight_limit_s": 5.0,
    "cold_start_after_s": 4.0,
    "decline_memory_s": 10.0,
}


class Entry(NamedTuple):
    """One record of a log."""

    timestamp_ms: int
    key: bytes
    value: bytes | None


@dataclass
class Log:
    """One partition; None where the cleaner took a record away."""

    topic: Topic
    partition: int
    entries: list[Entry | None] = field(default_factory=list)

    def clean(self, through: int) -> list[int]:
        """What Kafka's cleaner does to the segments that end at an offset: the last record of each key stays."""
        newest = {entry.key: offset for offset, entry in enumerate(self.entries[: through + 1]) if entry is not None}
        gone = [
            offset
            for offset, entry in enumerate(self.entries[: through + 1])
            if entry is not None and newest[entry.key] != offset
        ]
        for offset in gone:
            self.entries[offset] = None
        return gone


class World:
    """Everything of one scenario.

    Attributes:
        archive: A strict reader of the whole log from its beginning: it says the verdict of each record when it is written.
        lines: What happened since the last command, for the scenario file.
    """

    def __init__(self) -> None:
        self.tenths = 0
        self.settings = dict(SETTINGS)
        self.session_timeout_s = 2.0
        self.delivery_timeout_s = 5.0
        self.processes: list[Process] = []
        self.lines: list[str] = []
        self.show_heartbeats = False
        self.election = Election(self)
        self._tokens = 0
        self._asked: dict[int, str] = {}
        self._partitions = 0
        self.logs: dict[tuple[Topic, int], Log] = {}
        self.archive: list[View] = []
        self.stopped_at: dict[int, int] = {}

    # --- time -------------------------------------------------------------------------------------------------------

    @property
    def now_s(self) -> float:
        """Virtual time."""
        return self.tenths / 10

    @property
    def now_ms(self) -> int:
        """The log's clock."""
        return wording.EPOCH_MS + self.tenths * 100

    def say(self, text: str) -> None:
        """A line of the story."""
        self.lines.append(f"[{self.now_s:5.1f}] {text}")

    def run(self, duration_s: float) -> None:
        """Let time pass."""
        for _ in range(round(duration_s * 10)):
            self.tenths += 1
            for process in self.running():
                process.time_passes()
            self.election.tick()
            self.settle()

    def settle(self) -> None:
        """Deliver everything that is on its way; no time passes."""
        for _ in range(ROUNDS_MAX):
            # A list, not a generator: in each round everybody has a turn.
            busy = [process.deliver() for process in self.running()]
            if not any(busy):
                self._check()
                return
        raise RuntimeError("the brokers do not come to rest")

    def running(self) -> list[Process]:
        """Processes that are neither dead nor paused."""
        return [process for process in self.processes if process.alive and not process.paused]

    # --- brokers ----------------------------------------------------------------------------------------------------

    def start(self, broker: str, **settings: Any) -> None:
        """Start a process; each start of a broker id has the next number."""
        config = EngineConfig(**(self.settings | settings))
        if not self.logs:
            self._create_topics(config.partitions)
        number = 1 + sum(1 for process in self.processes if process.broker == broker)
        for view in self.archive:  # whoever reads the whole log is of the newest version
            view.newest_format = max(view.newest_format, config.newest_format)
        process = Process(self, broker, number, config)
        self.processes.append(process)
        process.open_all()

    def _create_topics(self, partitions: int) -> None:
        self._partitions = partitions
        self.logs[Topic.REGISTRY, 0] = Log(Topic.REGISTRY, 0)
        for partition in range(partitions):
            self.logs[Topic.CHANNEL, partition] = Log(Topic.CHANNEL, partition)
            self.archive.append(View(partition, partitions))

    def process(self, name: str) -> Process:
        """The newest process of a broker (`a`), or a certain one (`a#1`)."""
        found = [one for one in self.processes if name in (one.broker, one.name, f"{one.broker}#{one.number}")]
        if not found:
            raise ValueError(f"no broker {name} was started")
        return found[-1]

    def ask(self, name: str, command: Command, words: str) -> None:
        """A caller asks a broker."""
        self._tokens += 1
        self._asked[self._tokens] = words
        self.process(name).step(CommandReceived(self._tokens, command))

    def asked(self, token: int) -> str:
        """The words in which a command was given."""
        return self._asked[token]

    # --- the log ----------------------------------------------------------------------------------------------------

    def partition_of(self, key: str) -> int:
        """Where a key belongs; control keys and junk go to partition 0."""
        parts = parse_key(key.encode())
        return 0 if parts is None else partition_of(parts.namespace, self._partitions)

    def append(self, topic: Topic, partition: int, key: bytes, value: bytes | None) -> int:
        """Write a record; the archive judges it at once."""
        log = self.logs[topic, partition]
        offset = len(log.entries)
        log.entries.append(Entry(self.now_ms, key, value))
        if topic is Topic.CHANNEL:
            self._told(partition, offset, key, value)
        return offset

    def _told(self, partition: int, offset: int, key: bytes, value: bytes | None) -> None:
        verdict = "no verdict: judging has stopped"
        judgement = None
        if partition not in self.stopped_at:
            judgement = self.archive[partition].read(offset, key, value)
            verdict = str(judgement.verdict)
            if judgement.format:
                self.stopped_at[partition] = offset
        if key != HEARTBEAT_KEY or self.show_heartbeats:
            where = f"{partition}:{offset}" if self._partitions > 1 else f"{offset}"
            self.say(wording.record_line(where, key, value, verdict))

    def cold_started(self, process: Process, partition: int) -> None:
        """What this process read is the truth from here on; the archive, too, takes it over and reads on from there."""
        view = self.archive[partition] = duplicate(process.engine.replicas[partition].view)
        entries = self.logs[Topic.CHANNEL, partition].entries
        for offset in range(view.applied + 1, len(entries)):
            entry = entries[offset]
            if entry is not None:
                view.read(offset, entry.key, entry.value)

    def _check(self) -> None:
        """No two processes serve one generation; caught-up views at the archive's offset equal it."""
        serving: dict[tuple[str, int], str] = {}
        for process in self.processes:
            if not process.alive:
                continue
            for bundle, generation in process.engine.serving().items():
                other = serving.setdefault((bundle, generation), process.name)
                if other != process.name:
                    self.say(f"VIOLATION: {other} and {process.name} both serve {bundle} at generation {generation}")
            for replica, archive in zip(process.engine.replicas, self.archive, strict=True):
                judged = process.engine.context.judges(replica.partition)
                same_place = judged and replica.applied == archive.applied
                if same_place and digest([replica.view]) != digest([archive]):
                    self.say(f"VIOLATION: {process.name} holds another view than a reader of the whole log")
