"""A run of the demo: its output, its story step by step, the checks, and the end, after which no process is left."""

from __future__ import annotations

import itertools
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.text import Text

from statechannel.clocks import now_ms
from statechannel.demo.cluster import ADDRESS_VARIABLE, COMMAND_S, DemoCluster, DemoError, command_name
from statechannel.errors import ExitCode, StateChannelError
from statechannel.router import BlockingRouter

NAMESPACE = "public/default"
TOPIC, SPLIT_TOPIC = f"{NAMESPACE}/orders-1", f"{NAMESPACE}/orders-2"
"""In two bundles."""
BUNDLES = 16
BROKERS = ("b1", "b2", "b3")
FIRST_START_S = 600.0
"""Time-out of Kafka's first start, including the download of its jars."""
READY_S = 60.0
SERVED_S = 40.0
"""Longest wait until every bundle is served again: a lost owner is detected after 6 s, a lost leader costs 6 s more."""
SETTLED_S = 120.0
CALM = 3
"""Number of consecutive decisions without moves after which the cluster is balanced."""
COOLING = "CoolDown"
"""Reason of a decision that waits for new load reports after a move."""
CAUSES = frozenset({"transfer", "unload", "declined", "shutdown", "owner-lost"})
"""Causes of gaps that the demo makes; any other one means that the log does not show the cause."""
EXAMPLES = (
    "bundles",
    f"transfer {TOPIC} --dest b2",
    f"audit history {TOPIC}",
    "decisions --since 15m",
    "drain b2",
    "uncordon b2",
    "watch",
)
"""Commands to try on a cluster that keeps running."""
_POLL_S = 0.1
_COMMAND_POLL_S = 0.5
_WIDTH = 100
"""Width of the text without a terminal, and maximum width on one."""
_INDENT = "   "


class Narrator:
    """Output: steps, the commands to type with what they print, and checks.

    Colours only on a terminal, and not with NO_COLOR; plain ASCII, so that any terminal and log can show it.
    """

    def __init__(self) -> None:
        self._console = Console(file=sys.stdout, highlight=False, emoji=False, markup=False)
        if not self._console.is_terminal:
            self._console.width = _WIDTH
        self._begun_s = time.monotonic()
        self._step = 0

    @property
    def width(self) -> int:
        """Of what is printed inside a step."""
        return min(self._console.width, _WIDTH) - len(_INDENT)

    @property
    def where(self) -> str:
        return f"step {self._step}" if self._step else "the beginning"

    def step(self, title: str) -> None:
        self._step += 1
        self.title(f"{self._step}. {title}")

    def title(self, title: str) -> None:
        self._console.print()
        line = Text(title, style="bold cyan")
        line.append(f"  [{time.monotonic() - self._begun_s:.0f} s]", style="dim")
        self._print(line)

    def say(self, text: str) -> None:
        self._prose(text, "")

    def check(self, held: bool, text: str) -> None:
        self._prose(f"[ok] {text}" if held else f"[FAILED] {text}", "green" if held else "bold red")

    def command(self, text: str) -> None:
        self._print(Text(f"{_INDENT}$ {text}", style="bold"))

    def output(self, text: str) -> None:
        for line in text.rstrip().splitlines():
            self._print(Text(f"{_INDENT}{line.rstrip()}", style="dim"))

    def _prose(self, text: str, style: str) -> None:
        for line in Text(text, style=style).wrap(self._console, self.width):
            line.rstrip()
            self._print(Text(_INDENT) + line)

    def _print(self, line: Text) -> None:
        self._console.print(line, soft_wrap=True)


@dataclass(slots=True)
class Story:
    """One run of the demo.

    Attributes:
        checks: What was checked, in order: whether it held, and what it says.
        opened: Closes what the story has opened.
    """

    cluster: DemoCluster
    narrator: Narrator
    name: str = field(default_factory=command_name)
    checks: list[tuple[bool, str]] = field(default_factory=list)
    opened: ExitStack = field(default_factory=ExitStack)
    _router: BlockingRouter = field(init=False)

    def run(self) -> None:
        """Run the whole story, up to the checks; raises `DemoError` if it cannot continue."""
        self._start_kafka()
        self._start_brokers()
        self._create_namespace()
        self._transfer()
        self._split()
        killed = self._kill()
        self._start_again(killed)
        self._drain(killed)
        self._balance()
        self._audit()

    def _start_kafka(self) -> None:
        n = self.narrator
        n.step("A real Kafka")
        n.say(f"One Kafka broker on the loopback interface; all data is in {self.cluster.folder}.")
        self._command("kafka", "up", "--folder", str(self.cluster.kafka_folder), timeout_s=FIRST_START_S)
        n.say("Every later command finds it by this variable:")
        n.command(f"export {ADDRESS_VARIABLE}={self.cluster.address}")
        os.environ[ADDRESS_VARIABLE] = self.cluster.address
        self._command("init")

    def _start_brokers(self) -> None:
        n = self.narrator
        n.step("Three brokers, each a separate process")
        for broker in BROKERS:
            self._start(broker)
        self._router = self.opened.enter_context(BlockingRouter.open(join_timeout_s=READY_S))
        self._until_heard()
        n.say("They balance load automatically; for now an override keeps the balancer from moving bundles:")
        self._command("override", "shedding", "off", "--for", "1h", "--reason", "the steps before")

    def _create_namespace(self) -> None:
        n = self.narrator
        n.step(f"A namespace of {BUNDLES} bundles")
        n.say("One record creates it with all its bundles. Each is unassigned until its first lookup.")
        self._command("namespace", "create", NAMESPACE, "--bundles", str(BUNDLES))
        self._command("lookup", TOPIC)
        n.say("A router (`statechannel.router`, as clients have) looks up all others, and follows them from now on.")
        pool = ThreadPoolExecutor(BUNDLES)
        try:
            for bundle in self._router.bundles(NAMESPACE):
                pool.submit(self._router.wait, bundle.bundle, SERVED_S, assign=True)
            self._until_served()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        self._command("brokers")

    def _transfer(self) -> None:
        n = self.narrator
        n.step("A transfer")
        owner = self._owner(TOPIC)
        to = next(broker for broker in BROKERS if broker != owner)
        n.say(f"{owner} serves the bundle of {TOPIC}. Its destination is set before the source releases it.")
        self._command("transfer", TOPIC, "--dest", to)
        self._until_served()
        self._check(self._owner(TOPIC) == to, f"the transferred bundle is served by {to}")

    def _split(self) -> None:
        n = self.narrator
        n.step("A split")
        owner = self._owner(SPLIT_TOPIC)
        n.say("One record replaces a bundle by its halves; the owner keeps serving, without a gap.")
        self._command("split", SPLIT_TOPIC)
        self._until_served()
        count = len(self._router.bundles(NAMESPACE))
        held = count == BUNDLES + 1 and self._owner(SPLIT_TOPIC) == owner
        self._check(held, f"the namespace has {count} bundles after the split, still served by {owner}")

    def _kill(self) -> str:
        n = self.narrator
        n.step("kill -9 of one broker, the leader")
        leader = self.cluster.ask("brokers")["leader"]
        if leader not in self.cluster.living():
            raise DemoError(f"no broker of the demo is leader (leader: {leader})")
        orphans = len(self._router.owned_by(leader))
        n.command(f"kill -9 {self.cluster.living()[leader]}")
        self.cluster.stop_broker(leader, signal.SIGKILL)
        n.say(
            f"{leader} is gone, and {orphans} bundles are unserved. The others detect the loss by its missing "
            "heartbeats after 6 s, elect a leader, and the leader assigns the bundles to new owners."
        )
        took_s = self._until_served()
        self._command("brokers")
        self._check(True, f"every bundle was served again {took_s:.1f} s after the kill")
        return str(leader)

    def _start_again(self, killed: str) -> None:
        n = self.narrator
        n.step(f"{killed} comes back")
        n.say("A new process under the old id reads the log like any new broker; it owns nothing at first.")
        self._start(killed)
        self._until_heard()

    def _drain(self, killed: str) -> None:
        n = self.narrator
        leaving = next(broker for broker in self.cluster.living() if broker != killed)
        n.step(f"{leaving} is restarted gracefully")
        n.say(
            f"On SIGTERM it hands over its {len(self._router.owned_by(leaving))} bundles, resigns, sends a goodbye and ends."
        )
        n.command(f"kill {self.cluster.living()[leaving]}")
        begun_s = time.monotonic()
        code = self.cluster.stop_broker(leaving, signal.SIGTERM, SERVED_S)
        took_s = time.monotonic() - begun_s
        self._check(
            code == 0, f"{leaving} handed over its bundles and ended, after {took_s:.1f} s with exit code {code}"
        )
        self._start(leaving)
        self._until_heard()
        self._until_served()
        self._command("brokers")

    def _balance(self) -> None:
        n = self.narrator
        n.step("The cluster balances itself")
        n.say(
            "Brokers report their load, and the leader moves bundles from the busiest to the idlest. Load is simulated here: a "
            "few topics are heavy, and nothing has been balanced since the restarts."
        )
        begun_ms = now_ms()
        self._command("override", "end", "shedding")
        decisions = self._until_balanced(begun_ms)
        self._command("decisions", "--since", "15m", "--moves-only")
        moves = list(_begun(decisions))
        before, after = (_spread(decision["scores"]) for decision in (decisions[0], decisions[-1]))
        self._check(
            after < before and all(self._arrived(move) for move in moves),
            f"{len(moves)} moves brought the brokers from {before:.2f} to {after:.2f} apart",
        )
        n.say("Why is that bundle there? The log and the decisions know:")
        self._command("why", moves[-1]["bundle"])

    def _audit(self) -> None:
        n = self.narrator
        n.step("The audit: what happened, by the log?")
        n.say("It reads the same topic as the brokers, with the same rules.")
        self._until_served()
        self._check(True, f"each of {len(self._router.bundles(NAMESPACE))} bundles is served by a broker that runs")
        n.say("Every interval in which no broker served a bundle, with its cause:")
        self._command("audit", "gaps")
        gaps = self.cluster.ask("audit", "gaps")["gaps"]
        unexplained = [gap["bundle"] for gap in gaps if gap["cause"] not in CAUSES]
        self._check(not unexplained, f"the log shows the cause of each of {len(gaps)} gaps" + _except(unexplained))
        overlaps = [row["bundle"] for row in self.cluster.ask("audit", "overlaps")["overlaps"]]
        self._check(not overlaps, "at no time two brokers may have served one bundle" + _except(overlaps))
        n.say("Do the brokers have the states that the log gives?")
        equal = self._turns_out_well("audit", "verify", bad=(ExitCode.FAILED, ExitCode.UNDETERMINED))
        self._check(equal, f"the states of {', '.join(self.cluster.living())} are those of the log")
        n.say("Is all well now?")
        bad = (ExitCode.DOCTOR_WARNING, ExitCode.DOCTOR_CRITICAL, ExitCode.UNDETERMINED)
        self._check(self._turns_out_well("status", "--exit-code", bad=bad), "the status of the channel is healthy")

    def _check(self, held: bool, text: str) -> None:
        self.checks.append((held, text))
        if not held:
            self.narrator.check(held, text)

    def _command(self, *args: str, timeout_s: float = COMMAND_S, codes: Collection[int] = (0,)) -> int:
        """Run a command, and print it with what it prints; returns its exit code.

        Raises:
            DemoError: It takes too long, or has another exit code than these.
        """
        self.narrator.command(f"{self.name} {shlex.join(args)}")
        code, printed = self.cluster.run(*args, timeout_s=timeout_s, codes=codes)
        self.narrator.output(printed)
        return code

    def _turns_out_well(self, *args: str, bad: Collection[int]) -> bool:
        """Whether a command ends well at least once: a busy machine may make brokers late."""
        return any(self._command(*args, codes=(0, *bad)) == 0 for _ in range(3))

    def _start(self, broker: str) -> None:
        self.narrator.command(f"{self.name} {shlex.join(self.cluster.broker_command(broker))} &")
        self.cluster.start_broker(broker)

    def _owner(self, name: str) -> str | None:
        return getattr(self._router.lookup(name), "broker", None)

    def _until(self, held: Callable[[], bool], timeout_s: float, what: str) -> float:
        """Wait; returns the seconds."""
        begun_s = time.monotonic()
        while not held():
            if time.monotonic() - begun_s > timeout_s:
                raise DemoError(f"{what} within {timeout_s:.0f} s")
            time.sleep(_POLL_S)
        return time.monotonic() - begun_s

    def _until_heard(self) -> None:
        """Wait until the started brokers have caught up and accept bundles."""

        def heard() -> bool:
            for broker, process in self.cluster.brokers.items():
                if process.poll() is not None:
                    raise DemoError(f"broker {broker} ended while starting (exit code {process.returncode})")
            return {seen.broker for seen in self._router.brokers() if seen.accepting} == set(BROKERS)

        took_s = self._until(heard, READY_S, f"{', '.join(BROKERS)} were not ready")
        self.narrator.say(f"All have caught up with the channel after {took_s:.1f} s.")

    def _until_served(self) -> float:
        """Wait until every bundle is served by a broker that runs; returns the seconds."""

        def served() -> bool:
            living, bundles = self.cluster.living(), self._router.bundles(NAMESPACE)
            return bool(bundles) and all(seen.state == "Assigned" and seen.owner in living for seen in bundles)

        return self._until(served, SERVED_S, "the bundles were not all served")

    def _until_balanced(self, since_ms: int) -> Sequence[dict[str, Any]]:
        """Wait until the balancer has moved bundles and then made no more moves.

        Returns:
            Its decisions from the first with moves to the newest.

        Raises:
            DemoError: It takes too long.
        """
        until_s = time.monotonic() + SETTLED_S
        while True:
            listed = self.cluster.ask("decisions", "--since", "15m")["decisions"]
            sheds = [
                decision
                for decision in listed
                if decision["subject"] == "shed" and decision["skipped"] is None and decision["at_ms"] >= since_ms
            ]
            sheds = list(itertools.dropwhile(lambda decision: not any(_begun([decision])), sheds))
            newest = sheds[-CALM:]
            calm = not any(_begun(newest)) and not any(decision["reason"] == COOLING for decision in newest)
            ended = all(move["result"] != "started" or self._arrived(move) for move in _begun(sheds))
            if sheds and calm and ended and len(sheds[-1]["scores"]) == len(BROKERS):
                return sheds
            if time.monotonic() > until_s:
                why = listed[-1]["why"] if listed else "nothing"
                raise DemoError(
                    f"the cluster was not balanced within {SETTLED_S:.0f} s; the newest decision says: {why}"
                )
            time.sleep(_COMMAND_POLL_S)

    def _arrived(self, move: dict[str, Any]) -> bool:
        """Whether a move was done: a leader that is replaced records no end of its moves."""
        return bool(move["result"] == "done" or self._owner(move["bundle"]) == move["destination"])


def _begun(decisions: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for decision in decisions:
        for move in decision["moves"]:
            if move["operation"] is not None and move["result"] != "abandoned":
                yield move


def _spread(scores: dict[str, float]) -> float:
    return max(scores.values()) - min(scores.values())


def _except(bundles: Sequence[str]) -> str:
    return f", except {', '.join(bundles)}" if bundles else ""


def run_demo(*, keep: bool = False) -> list[str]:
    """Run the story, print the checks and clean up.

    Args:
        keep: Leave the cluster running on success.

    Returns:
        What failed.
    """
    narrator, cluster = Narrator(), DemoCluster.make()
    story = Story(cluster, narrator)
    keep_files, keep_running = True, False
    with cluster.environment(narrator.width):
        try:
            try:
                story.run()
            except StateChannelError as error:
                story.checks.append((False, f"{narrator.where}: {error}"))
            narrator.title("Checks")
            for held, text in story.checks:
                narrator.check(held, text)
            failed = [text for held, text in story.checks if not held]
            keep_files, keep_running = bool(failed), keep and not failed
            if keep_running:
                _show_use(story)
        except KeyboardInterrupt:
            keep_files = False
            raise
        else:
            return failed
        finally:
            with _ignore_interrupts():
                story.opened.close()
                if not keep_running:
                    _end(cluster, narrator, keep_files=keep_files)


def _show_use(story: Story) -> None:
    cluster, narrator = story.cluster, story.narrator
    narrator.title("The cluster keeps running")
    narrator.command(f"export {ADDRESS_VARIABLE}={cluster.address}")
    for example in EXAMPLES:
        narrator.command(f"{story.name} {example}")
    narrator.say("To end it:")
    narrator.command(f"kill {' '.join(map(str, cluster.living().values()))}")
    narrator.command(f"{story.name} kafka down --folder {cluster.kafka_folder}")
    narrator.command(f"rm -r {cluster.folder}")


def _end(cluster: DemoCluster, narrator: Narrator, *, keep_files: bool) -> None:
    narrator.title("Clean-up")
    brokers = len(cluster.living())
    cluster.end(keep_files=keep_files)
    narrator.say(f"{brokers} brokers and Kafka were ended.")
    if keep_files:
        narrator.say(f"Logs and data are still in {cluster.folder}: {cluster.logs()}")


@contextmanager
def _ignore_interrupts() -> Iterator[None]:
    """Ignore a second Ctrl-C, which would leave processes behind; the clean-up has its own time limits."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
