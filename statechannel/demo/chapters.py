"""Building blocks of the demo's stories: Kafka, brokers, a client, commands with their output, checked promises; and a run.

A run always ends the processes that it has started.
"""

from __future__ import annotations

import itertools
import math
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from statechannel.demo.client import Client, LinkDownError, ask_broker, now_ms
from statechannel.demo.cluster import (
    ADDRESS_VARIABLE,
    COMMAND_S,
    FIRST_START_S,
    DemoBroker,
    DemoCluster,
    DemoError,
    command_name,
)
from statechannel.demo.narrator import Narrator
from statechannel.demo.observed_gaps import AuditedGap, GapComparison, compare
from statechannel.demo.plane import place_of_topic
from statechannel.errors import StateChannelError

DIGEST_S = 10.0
"""Longest wait until all brokers have applied the audited log."""
_POLL_S = 0.2


@dataclass(slots=True)
class Promises:
    """Collects and prints checked promises.

    Attributes:
        broken: Promises that did not hold.
    """

    narrator: Narrator
    broken: list[str] = field(default_factory=list)

    def check(self, held: bool, text: str) -> None:
        if held:
            self.narrator.good(text)
        else:
            self.broken.append(text)
            self.narrator.bad(text)

    def all(self, problems: Sequence[str], text: str) -> None:
        """Note a promise that is broken by each of the problems."""
        for problem in problems:
            self.check(False, problem)
        if not problems:
            self.check(True, text)

    def gaps(
        self, audit: dict[str, Any], client: Client, *, topics: Iterable[str], since_ms: int, until_ms: int
    ) -> GapComparison:
        audited = [AuditedGap.of(fields) for fields in audit["gaps"]]
        noticed = client.gaps()
        comparison = compare(audited, noticed, topics=topics, since_ms=since_ms, until_ms=until_ms)
        self.all(
            comparison.problems,
            f"the audit has {len(audited)} gaps, each with its cause; the client noticed {len(noticed)} in "
            f"{client.writes:,} writes, and each is one of the audit's",
        )
        self.all(client.broken, "no write was accepted by two owners, or by a former one")
        return comparison


SERVED_S = 40.0
"""Longest wait until every topic is served again: a lost owner is detected after 6 s, a lost leader costs 6 s more."""
_SERVED_POLL_S = 0.1
CALM = 3
"""Number of consecutive decisions without moves after which it has settled."""
COOLING = "CoolDown"
"""Reason of a decision that waits for new load reports after a move."""
_STARTED, _ABANDONED = "started", "abandoned"
"""Results of a move: no end of it was recorded; and it was not begun (design/decisions-topic.md)."""
SETTLED_S = 120.0
_COMMAND_POLL_S = 0.5


def topic_names(namespace: str, parts: int) -> list[str]:
    """One topic in each of a number of equal parts of the ring."""
    names: dict[int, str] = {}
    for number in itertools.count(1):
        topic = f"{namespace}/orders-{number}"
        names.setdefault(place_of_topic(topic)[1] * parts >> 32, topic)
        if len(names) == parts:
            return [names[part] for part in range(parts)]
    raise AssertionError  # count() has no end


@dataclass(slots=True)
class Chapters:
    """Base class of the stories; `run` runs one.

    Attributes:
        promises: Checked promises.
        all_written_ms: When the client had written to every topic.
        EXAMPLES: Commands to try on a cluster that keeps running; `{topic}` is one of its topics.
    """

    EXAMPLES: ClassVar[Sequence[str]] = ()

    cluster: DemoCluster
    narrator: Narrator
    topics: list[str] = field(default_factory=list)
    name: str = field(default_factory=command_name)
    promises: Promises = field(init=False)
    client: Client | None = field(default=None, init=False)
    all_written_ms: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.promises = Promises(self.narrator)

    def run(self) -> None:
        """Run the whole story; raises `DemoError` if it cannot continue."""
        raise NotImplementedError

    def close(self) -> None:
        if self.client is not None:
            self.client.stop()

    # --- steps that all have ----------------------------------------------------------------------------------------

    def start_kafka(self) -> None:
        n = self.narrator
        n.step("A real Kafka")
        n.say(f"One Kafka broker on the loopback interface; all data is in {self.cluster.folder}.")
        kafka = self.command("kafka", "up", "--folder", str(self.cluster.kafka_folder), timeout_s=FIRST_START_S)
        self.cluster.address = kafka["bootstrap_servers"]
        n.good(f"it listens on {self.cluster.address}, pid {kafka['pid']}")
        n.say("Every later command finds it by this variable:")
        n.command(f"export STATECHANNEL_KAFKA__BOOTSTRAP_SERVERS={self.cluster.address}")
        kafka = self.command("init")
        n.good(
            f"{len(kafka['topics'])} topics: the channel (compacted), the registry, requests, and the leader election"
        )

    def start_brokers(self, brokers: Sequence[str]) -> None:
        started = []
        for broker in brokers:
            self.narrator.command(f"{self.name} {' '.join(self.cluster.broker_command(broker))} &")
            started.append(self.cluster.start_broker(broker))
        for process in started:
            self.cluster.wait_ready(process)
            self.narrator.good(f"{process.id} has caught up with the channel, pid {process.pid}, {process.url}")

    def start_client(self) -> None:
        """Start the client, and wait until it has written to every topic."""
        self.client = Client(self.topics, [broker.url for broker in self.cluster.living()])
        self.client.start()
        took_s = self.until_served()
        self.all_written_ms = now_ms()
        self.narrator.good(f"every topic was written to after {took_s:.1f} s; from now on the client notes every gap")

    def check_owners(self) -> None:
        """Check that every bundle is served by exactly one broker, its owner by the log."""
        bundles = self.bundles()
        serving: dict[str, list[str]] = {}
        for broker in self.cluster.living():
            try:
                answer = ask_broker(broker.url, "serving")
            except LinkDownError as error:
                self.promises.check(False, f"{broker.id} does not answer: {error}")
                continue
            for name in answer["serving"]:
                serving.setdefault(name, []).append(broker.id)
        problems = [
            f"{bundle['bundle']} is {bundle['state']}, owned by {bundle['owner']}, "
            f"and served by {serving.get(bundle['bundle'], [])}"
            for bundle in bundles
            if bundle["state"] != "Assigned" or serving.get(bundle["bundle"]) != [bundle["owner"]]
        ]
        live = {bundle["bundle"] for bundle in bundles}
        problems += [f"{name} is served by {by} but does not live" for name, by in serving.items() if name not in live]
        text = f"each of the {len(bundles)} bundles is served by exactly one broker, its owner in the log"
        self.promises.all(problems, text)

    def check_digests(self) -> None:
        """Check that all brokers, and an audit of the same log, have the same accepted states."""
        until_s = time.monotonic() + DIGEST_S
        while True:
            expected = self.cluster.ask("audit")["digest"]
            digests = {broker.id: _digest_of(broker) for broker in self.cluster.living()}
            if set(digests.values()) == {expected} or time.monotonic() > until_s:
                break
            time.sleep(_POLL_S)
        differing = [
            f"the digest of {broker} is {digest}, the audit's {expected}"
            for broker, digest in digests.items()
            if digest != expected
        ]
        self.promises.all(differing, f"digest {expected[:16]}... of the audit is also that of {', '.join(digests)}")

    # --- parts of steps ---------------------------------------------------------------------------------------------

    @property
    def writer(self) -> Client:
        """The client that writes to the topics.

        Raises:
            DemoError: It was not started.
        """
        if self.client is None:
            raise DemoError("the client was not started")
        return self.client

    def command(self, *args: str, timeout_s: float = COMMAND_S) -> dict[str, Any]:
        self.narrator.command(f"{self.name} {' '.join(args)}")
        return self.cluster.ask(*args, timeout_s=timeout_s)

    def show(self, command: str, *columns: str) -> None:
        rows = self.command(command)[command]
        self.narrator.table(columns, [[_cell(row, column) for column in columns] for row in rows])

    def show_moves(self, moves: Iterable[dict[str, Any]], short: Callable[[str], str]) -> None:
        """Show moves of decisions as a table, with short names of the bundles."""
        self.narrator.table(
            ("bundle", "from", "to", "result", "why"),
            [
                (short(move["bundle"]), move["source"], move["destination"] or "-", move["result"], move["why"])
                for move in moves
            ],
        )

    def print(self, *args: str) -> None:
        self.narrator.command(f"{self.name} {' '.join(args)}")
        ran = self.cluster.run(*args)
        if ran.code != 0:
            raise DemoError(f"`statechannel {' '.join(args)}` failed (exit code {ran.code}): {ran.error}")
        self.narrator.output(ran.stdout)

    def bundles(self) -> list[dict[str, Any]]:
        bundles: list[dict[str, Any]] = self.cluster.ask("bundles")["bundles"]
        return bundles

    def until_served(self, *, lost: str | None = None) -> float:
        """Wait until every topic's last write was accepted; returns the seconds."""
        begun_s = time.monotonic()
        while time.monotonic() - begun_s < SERVED_S:
            unserved = self.writer.unserved()
            if not unserved and (lost is None or not any(bundle["owner"] == lost for bundle in self.bundles())):
                return time.monotonic() - begun_s
            time.sleep(_SERVED_POLL_S)
        raise DemoError(
            f"after {SERVED_S:.0f} s no broker accepts writes to {', '.join(self.writer.unserved()) or f'bundles of {lost}'}",
            log=self.cluster.living()[0].log if self.cluster.living() else None,
        )


def _cell(row: dict[str, Any], column: str) -> str:
    value = row["leading"] if column == "leader" else row["urls"] if column == "URLs" else row[column]
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(value.values()) if isinstance(value, dict) else str(value)


def _digest_of(broker: DemoBroker) -> str | None:
    try:
        digest: str | None = ask_broker(broker.url, "digest").get("digest")
    except LinkDownError:
        return None
    return digest


@dataclass(frozen=True, slots=True)
class Balanced:
    """Decisions of the balancer.

    Attributes:
        decisions: Those with moves, the oldest first.
        before: Each broker's score at the first of them; after: at the newest decision.
    """

    decisions: Sequence[dict[str, Any]]
    before: dict[str, float]
    after: dict[str, float]

    @property
    def moves(self) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        return ((decision, move) for decision in self.decisions for move in _begun(decision))

    @property
    def unsettled(self) -> Sequence[str]:
        """Moves that did not succeed, as sentences. `until_settled` has looked for those whose end was not recorded."""
        return [
            f"{move['bundle']}: {move['result']}" for _, move in self.moves if move["result"] not in ("done", _STARTED)
        ]


def spread(scores: dict[str, float]) -> float:
    return max(scores.values()) - min(scores.values()) if scores else 0.0


def until_settled(cluster: DemoCluster, since_ms: int, brokers: int, *, spread_max: float = math.inf) -> Balanced:
    """Wait until the balancer has moved bundles and then made no more moves.

    Args:
        since_ms: Earlier decisions are ignored.
        brokers: Number of brokers that must have scores.
        spread_max: Largest difference of two scores. Where reports are late, the balancer may pause before the end.

    Raises:
        DemoError: It takes too long.
    """
    until_s = time.monotonic() + SETTLED_S
    while True:
        listed = cluster.ask("decisions", "--since", "1h")["decisions"]
        sheds = [
            decision
            for decision in listed
            if decision["subject"] == "shed" and decision["skipped"] is None and decision["at_ms"] >= since_ms
        ]
        moved = [decision for decision in sheds if _begun(decision)]
        calm = not any(_begun(decision) or decision["reason"] == COOLING for decision in sheds[-CALM:])
        scores = sheds[-1]["scores"] if sheds else {}
        even = len(scores) == brokers and spread(scores) <= spread_max
        if moved and calm and even and _have_arrived(cluster, moved):
            return Balanced(moved, moved[0]["scores"], scores)
        if time.monotonic() > until_s:
            reason = sheds[-1]["why"] if sheds else listed[-1]["why"] if listed else "nothing"
            raise DemoError(
                f"the cluster was not balanced within {SETTLED_S:.0f} s; the newest decision says: {reason}"
            )
        time.sleep(_COMMAND_POLL_S)


def _begun(decision: dict[str, Any]) -> list[dict[str, Any]]:
    return [move for move in decision["moves"] if move["operation"] is not None and move["result"] != _ABANDONED]


def _have_arrived(cluster: DemoCluster, decisions: Iterable[dict[str, Any]]) -> bool:
    """Whether the destinations own what was moved: a leader that is replaced records no end of its moves."""
    last = {move["bundle"]: move for decision in decisions for move in _begun(decision)}
    started = [move for move in last.values() if move["result"] == _STARTED]
    if not started:
        return True
    owners = {row["bundle"]: row["owner"] for row in cluster.ask("bundles")["bundles"]}
    return all(owners.get(move["bundle"]) == move["destination"] for move in started)


# --- the run ------------------------------------------------------------------------------------------------------------


def run_demo(story: Chapters, *, keep: bool = False) -> list[str]:
    """Run a story and clean up.

    Args:
        keep: Leave the cluster running on success.

    Returns:
        The promises that did not hold.

    Raises:
        DemoError: It could not continue.
    """
    cluster, narrator = story.cluster, story.narrator
    went_well = False
    try:
        story.run()
        went_well = not story.promises.broken
        if keep and went_well:
            _keep_running(story)
    except StateChannelError as error:
        look = places_to_look(cluster, first=getattr(error, "log", None))
        narrator.failed(str(error), look)
        raise DemoError(f"{narrator.where} of the demo failed: {error}", hint=look) from error
    else:
        return story.promises.broken
    finally:
        with _ignore_interrupts():
            story.close()
            if not (keep and went_well):
                _end(cluster, narrator, keep_files=not went_well)


def _end(cluster: DemoCluster, narrator: Narrator, *, keep_files: bool) -> None:
    narrator.clean_up()
    pids = [broker.pid for broker in cluster.living()]
    cluster.end(keep_files=keep_files)
    narrator.say(f"{len(pids)} brokers and Kafka were ended.")
    if keep_files:
        narrator.say(f"Logs and data are still in {cluster.folder}")


def places_to_look(cluster: DemoCluster, *, first: Path | None = None) -> str:
    """Hint with the log files that may have the cause: Kafka's and the brokers'."""
    logs = [cluster.kafka_log, *(broker.log for broker in cluster.brokers.values())]
    others = [path for path in logs if path.exists() and path != first]
    names = [str(path) for path in ([first] if first is not None else []) + others]
    return f"Read {', '.join(names)}" if names else f"Read the files in {cluster.folder}"


def _keep_running(story: Chapters) -> None:
    cluster, narrator = story.cluster, story.narrator
    narrator.step("The cluster keeps running")
    narrator.command(f"export {ADDRESS_VARIABLE}={cluster.address}")
    for example in story.EXAMPLES:
        narrator.command(f"{story.name} {example.format(topic=story.topics[0])}")
    narrator.say("To end it:")
    narrator.command(f"kill {' '.join(str(broker.pid) for broker in cluster.living())}")
    narrator.command(f"{story.name} kafka down --folder {cluster.kafka_folder}")
    narrator.command(f"rm -r {cluster.folder}")


@contextmanager
def _ignore_interrupts() -> Iterator[None]:
    """Ignore a second Ctrl-C, which would leave processes behind; the clean-up has its own time limits."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
