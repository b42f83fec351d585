"""Rolling restart: drains, restarts and uncordons one broker after the other.

Its only state is the log: each drain is a request with the restart's id, all brokers to
restart, and the process to be ended. So the same command with `--operation ID` continues on any machine: a broker that
runs as another process since then is done.

The drain of each broker knows which brokers are done: those take its bundles (`shedders.decision.planned_restart`). Until the
last one is back the balancer moves nothing, so that it does not fill a broker that is about to receive the next one's bundles.
Only one restart at a time has the claim to do so (`shedders.cli.drain.claim`).
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from shedders.cli.drain.claim import ClaimedRestart, RestartUnderWayError, read_claims
from shedders.cli.drain.cordons import cordon_of, hold_balancing, release_balancing, uncordon
from shedders.cli.drain.follower import (
    AGAIN_S,
    BundleCounts,
    DrainRequest,
    broker_not_found,
    drain,
    is_retried,
    new_id,
    require_alive,
    require_empty,
    send,
)
from shedders.queries.policies import DRAIN, drain_id_of, read_policies
from statechannel.broker.request_writer import BALANCER
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.output import say
from statechannel.cli.kit.progress import ProgressBars
from statechannel.cli.kit.requests import follow
from statechannel.engine.commands import Done
from statechannel.engine.membership import Member
from statechannel.errors import ExitCode, NotFoundError, StateChannelError, UsageError
from statechannel.kafka.errors import KafkaUnavailableError
from statechannel.queries.connection import Connection
from statechannel.queries.live_log import extension_requests
from statechannel.queries.registry import read_registry
from statechannel.stories.registry import Registry

POLL_S: Final = 1.0
PLACE: Final = "{broker}"
MARGIN_S: Final = 60.0
"""The balancer holds still for this long beyond the time limit of a step."""
STDERR: Final = 2
"""Output of the restart command goes to standard error, as standard output may be JSON."""


@dataclass(frozen=True, slots=True)
class RestartRequest:
    """Request of a rolling restart.

    Attributes:
        restart: Id of the restart.
        command: Words of the command that restarts one broker, `{broker}` in place of its id; None: an operator restarts it.
        back_s: Time limit until a broker is back; `command_s`, `drain_s`, `fresh_s` likewise.
        leader_s: Time limit until a leader is elected, if the order depends on it.
        instead_of: Id of a restart under way that this one replaces; empty: none.
    """

    restart: str
    command: Sequence[str] | None
    rate_per_s: float | None = None
    force: bool = False
    why: str = ""
    by: str | None = None
    back_s: float = 300.0
    command_s: float = 300.0
    drain_s: float = 1_800.0
    fresh_s: float = 60.0
    leader_s: float = 60.0
    instead_of: str = ""


@dataclass(slots=True)
class RestartProgress:
    """Progress of a restart, read from the requests topic.

    Attributes:
        brokers: All brokers to restart; empty: the restart has not begun.
        before: Process to be ended, by broker whose drain was requested.
    """

    brokers: list[str] = field(default_factory=list)
    before: dict[str, str] = field(default_factory=dict)


def read_progress(connection: Connection, restart: str) -> RestartProgress:
    progress = RestartProgress()
    for request in extension_requests(connection, BALANCER, DRAIN):
        args = request.args
        broker, incarnation, brokers = args.get("broker"), args.get("incarnation"), args.get("brokers")
        if args.get("restart") != restart or not isinstance(broker, str) or not isinstance(incarnation, str):
            continue
        progress.before.setdefault(broker, incarnation)
        if isinstance(brokers, list) and all(isinstance(name, str) for name in brokers):
            progress.brokers = progress.brokers or list(brokers)
    if not progress.brokers:  # it was claimed, and its command died before the first drain
        claimed = (claim for claim in read_claims(connection) if claim.restart == restart and claim.brokers)
        progress.brokers = next((list(claim.brokers) for claim in claimed), [])
    return progress


def next_broker(
    brokers: Sequence[str], done: set[str], started: Mapping[str, str], leader: str | None, counts: Mapping[str, int]
) -> str | None:
    """Next broker: one whose restart was started, then by name, the leader last; None when all are done.

    Args:
        counts: Number of bundles by broker: the first of all has the fewest, as its bundles move twice.
    """
    left = [name for name in sorted(brokers) if name not in done]
    first = not done and not started
    return min(
        left,
        key=lambda name: (name not in started, name == leader, counts.get(name, 0) if first else 0, name),
        default=None,
    )


def bundle_counts(connection: Connection) -> Mapping[str, int]:
    return BundleCounts(connection).refresh(force=True)


def split_command(text: str) -> list[str]:
    """Words of a command, split as a shell does; no shell runs.

    Raises:
        UsageError: The command has no `{broker}`, or cannot be split.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--command cannot be parsed: {error}") from error
    if not any(PLACE in word for word in words):
        raise UsageError(
            f"--command has no {PLACE}: it would be the same for every broker",
            hint=f"Use {PLACE} for the broker's id: --command 'ssh {PLACE} systemctl restart broker'.",
        )
    return words


def require_program(words: Sequence[str], broker: str | None = None) -> None:
    """Check the program before the first drain, so that no broker is drained that cannot be restarted.

    Args:
        broker: None: check the part that is the same for all brokers.

    Raises:
        UsageError: The program does not exist, or is not executable.
    """
    if broker is None and PLACE in words[0]:
        return
    program = words[0].replace(PLACE, broker or "")
    if shutil.which(program) is None:
        raise UsageError(
            f"--command: program {program} not found or not executable here; nothing was drained",
            hint="Use its full path, or add its folder to PATH. No shell runs; if you need one, use `sh -c '...'`.",
        )


def require_argument(words: Sequence[str], broker: str) -> None:
    """Reject a broker id that a program would parse as an option, as any client of the registry may choose ids.

    Raises:
        UsageError: A word of the command would begin with `-`.
    """
    if broker.startswith("-") and any(word.startswith(PLACE) for word in words):
        raise UsageError(
            f"--command: the broker id {broker!r} begins with -, so the program would parse it as an option; nothing was drained",
            hint="Restart that broker with another id, or put a prefix before the id in the command: user@{broker}.",
        )


class Restart:
    def __init__(self, connection: Connection, request: RestartRequest, bar: ProgressBars) -> None:
        self._connection = connection
        self._request = request
        self._bar = bar
        self._override_noted = False
        self._brokers: Sequence[str] = ()
        self._claim = ClaimedRestart.new(connection, request.restart, request.instead_of, request.by)

    def run(self, wanted: Sequence[str]) -> list[dict[str, Any]]:
        """Restart all brokers and return what was done, in order.

        Args:
            wanted: Brokers; empty: all live ones. A continued restart keeps the brokers that it began with.

        Raises:
            RestartUnderWayError: Another restart is under way, or another command has taken this one over.
            CommandError: A broker cannot be drained or restarted, or does not come back; the rest was left alone.
        """
        progress, registry, self._brokers = self._begin(wanted)
        try:
            results = self._run(progress, registry, self._brokers)
        except RestartUnderWayError:  # the override is the other one's
            raise
        except BaseException:
            self._release()
            raise
        self._release()
        return results

    def _run(self, progress: RestartProgress, registry: Registry, brokers: Sequence[str]) -> list[dict[str, Any]]:
        done = {name for name in brokers if self._is_done(name, progress.before, registry)}
        for name in sorted(done):
            say(f"{name} was restarted already")
        if len(done) < len(brokers):
            self._hold(self._request.fresh_s + self._request.leader_s)
        if done and len(done) < len(brokers):
            self._wait_fresh(max(done), others=len(brokers) - len(done))  # the previous command may have stopped here
        results: list[dict[str, Any]] = []
        while True:
            registry = self._with_leader([name for name in brokers if name not in done], progress.before)
            leader = None if registry.leader is None else registry.leader.broker
            turn = next_broker(brokers, done, progress.before, leader, self._bundle_counts(done, progress))
            if len(brokers) > 1:
                self._bar.show("restart", "brokers restarted", len(done), len(brokers))
            if turn is None:
                return results
            others = len(brokers) - len(done) - 1
            results.append(self._restart_broker(turn, brokers, progress.before, registry, done, others=others))
            done.add(turn)

    def _bundle_counts(self, done: set[str], progress: RestartProgress) -> Mapping[str, int]:
        """Bundles by broker, where the order depends on them."""
        return {} if done or progress.before else bundle_counts(self._connection)

    def _hold(self, within_s: float) -> None:
        """Keep the balancer from moving bundles during the next step; if this command dies, it goes on after that time."""
        request = self._request
        self._claim.hold(self._brokers, within_s + MARGIN_S)
        if (
            not hold_balancing(self._connection, request.restart, within_s + MARGIN_S, by=request.by)
            and not self._override_noted
        ):
            say("note: an override of shedding is in force and stays as it is")
            self._override_noted = True

    def _release(self) -> None:
        try:
            release_balancing(self._connection, self._request.restart)
        except StateChannelError as error:
            # What ended the restart is to be reported; the override expires by itself.
            say(f"note: the balancer moves no bundles until the override of shedding expires: {error}")
        try:
            self._claim.end()
        except StateChannelError as error:
            say(f"note: another rolling restart is refused until the claim of this one lapses: {error}")

    def order(self, wanted: Sequence[str]) -> list[str]:
        """The brokers that `run` would restart, in order, as long as the leader stays the same; raises as `run`."""
        progress, registry, brokers = self._begin(wanted)
        done = {name for name in brokers if self._is_done(name, progress.before, registry)}
        leader = None if registry.leader is None else registry.leader.broker
        order: list[str] = []
        counts = self._bundle_counts(done, progress)
        while (turn := next_broker(brokers, done | {*order}, progress.before, leader, counts)) is not None:
            order.append(turn)
        return order

    def _begin(self, wanted: Sequence[str]) -> tuple[RestartProgress, Registry, list[str]]:
        self._claim.check()
        progress = read_progress(self._connection, self._request.restart)
        registry = read_registry(self._connection)
        brokers = progress.brokers or self._select_brokers(wanted, registry)
        if self._request.command is not None:
            for name in brokers:
                require_argument(self._request.command, name)
                if PLACE in self._request.command[0]:
                    require_program(self._request.command, name)
        return progress, registry, brokers

    @staticmethod
    def _select_brokers(wanted: Sequence[str], registry: Registry) -> list[str]:
        alive = registry.members.alive
        for name in wanted:
            if name not in alive:
                raise broker_not_found(name)
        require_alive(registry)
        return sorted(set(wanted) or set(alive))

    def _is_done(self, name: str, before: Mapping[str, str], registry: Registry) -> bool:
        member = registry.members.alive.get(name)
        if name not in before or member is None or member.incarnation == before[name] or not member.accepting:
            return False
        return drain_id_of(cordon_of(read_policies(self._connection), name)) is None

    # --- one broker -------------------------------------------------------------------------------------------------

    def _restart_broker(
        self,
        name: str,
        brokers: Sequence[str],
        before: dict[str, str],
        registry: Registry,
        done: set[str],
        *,
        others: int,
    ) -> dict[str, Any]:
        begun_s = time.monotonic()
        member = registry.members.alive.get(name)
        if name not in before and member is None:
            raise self._stop_error(f"{name} is not alive, and this restart has not drained it", ExitCode.NOT_FOUND)
        moved = None
        if member is not None and before.get(name, member.incarnation) == member.incarnation:
            before[name] = member.incarnation
            self._hold(self._request.drain_s)
            moved = self._drain(name, member, brokers, done)
        self._hold(self._request.command_s + self._request.back_s + self._request.fresh_s + self._request.leader_s)
        member = read_registry(self._connection, listen=False).members.alive.get(name)
        if member is None or before[name] == member.incarnation:
            self._restart(name)
        back = self._wait_back(name, before[name])
        self._uncordon(name)
        late = self._wait_fresh(name, others)
        self._bar.drop(name)
        took_s = round(time.monotonic() - begun_s, 3)
        say(f"{name} is back (process {back.incarnation}, {took_s:.1f} s)")
        return {
            "broker": name,
            "before": before[name],
            "after": back.incarnation,
            "moved": moved,
            "late_reports": late,
            "took_s": took_s,
        }

    def _drain(self, name: str, member: Member, brokers: Sequence[str], done: set[str]) -> object:
        request = self._request
        extra = {
            "restart": request.restart,
            "incarnation": member.incarnation,
            "brokers": list(brokers),
            "done": sorted(done),
        }
        why = f"rolling restart {request.restart}{f': {request.why}' if request.why else ''}"
        asked = DrainRequest(name, new_id(), request.rate_per_s, request.force, why, request.by, request.drain_s, extra)
        try:
            drained = drain(self._connection, asked, self._bar)
            require_empty(drained)
        except (CommandError, NotFoundError, UsageError) as error:
            raise self._stop_error(f"{name} cannot be drained: {error}", error.exit_code, error.hint) from error
        return drained.facts.get("moved")

    def _restart(self, name: str) -> None:
        if self._request.command is None:
            say(f"restart {name} now; waiting at most {self._request.back_s:g} s until it is back")
            return
        words = [word.replace(PLACE, name) for word in self._request.command]
        self._bar.show(name, f"running {shlex.join(words)}", 0, 1)
        try:
            with self._bar.hidden():
                process = subprocess.run(
                    words, stdin=subprocess.DEVNULL, stdout=STDERR, timeout=self._request.command_s, check=False
                )
        except subprocess.TimeoutExpired as error:
            raise self._cordoned_error(
                name, f"the command for {name} has not ended in {self._request.command_s:g} s"
            ) from error
        except OSError as error:
            raise self._cordoned_error(name, f"the command for {name} cannot be run: {error}") from error
        if process.returncode != 0:
            raise self._cordoned_error(
                name, f"the command for {name} ended with {process.returncode}: {shlex.join(words)}"
            )

    def _wait_back(self, name: str, before: str) -> Member:
        ends_s = time.monotonic() + self._request.back_s
        while True:
            member = None
            with suppress(KafkaUnavailableError):  # Kafka may be back before the time is up
                member = read_registry(self._connection).members.alive.get(name)
            if member is not None and member.incarnation != before and member.accepting:
                return member
            if time.monotonic() > ends_s:
                raise self._cordoned_error(
                    name,
                    f"{name} has not come back within {self._request.back_s:g} s: {_restart_state(member, before)}",
                    ExitCode.UNDETERMINED,
                )
            left_s = ends_s - time.monotonic()
            what = f"waiting for {name} ({_restart_state(member, before)})"
            self._bar.show(name, what, 0, 1, left=f", {left_s:.0f} s at most")
            time.sleep(POLL_S)

    def _uncordon(self, name: str) -> None:
        entry = cordon_of(read_policies(self._connection), name)
        if entry is None:
            return
        if drain_id_of(entry) is None:
            say(
                f"note: {name} stays cordoned: the cordon was set by {entry.author.text or 'an unknown user'}, not by a drain"
            )
            return
        uncordon(self._connection, name, force=False)

    def _with_leader(self, left: Sequence[str], before: Mapping[str, str]) -> Registry:
        """The registry, with a leader if the order depends on it."""
        ends_s = time.monotonic() + self._request.leader_s
        while True:
            registry = read_registry(self._connection)
            if registry.leader is not None or len(left) < 2 or any(name in before for name in left):  # noqa: PLR2004 - one has no order
                return registry
            if time.monotonic() > ends_s:
                raise self._stop_error(
                    f"no leader was elected within {self._request.leader_s:g} s, so the order is unknown (the leader is last)",
                    ExitCode.NO_BROKER,
                    "`statechannel brokers` shows which brokers are alive.",
                )
            self._bar.show("restart", "waiting for a leader", 0, 1)
            time.sleep(POLL_S)

    def _wait_fresh(self, name: str, others: int) -> list[str]:
        """Wait for fresh load reports, and return brokers without one.

        Args:
            name: Broker that is back.
            others: Number of brokers still to restart.
        """
        begun_s = time.monotonic()
        ends_s = begun_s + self._request.fresh_s
        while True:
            left_s = ends_s - time.monotonic()
            outcome = follow(self._connection, send(self._connection, "fresh", {}, left_s)).outcome
            if isinstance(outcome, Done):
                break
            if time.monotonic() + AGAIN_S >= ends_s or not is_retried(outcome, begun_s):
                return self._handle_unknown_freshness(name, others)
            time.sleep(AGAIN_S)
        names = outcome.facts.get("late")
        late = [str(name) for name in names] if isinstance(names, list) else []
        if late:
            say(f"note: no fresh load report of {', '.join(late)} within {self._request.fresh_s:g} s")
        return late

    def _handle_unknown_freshness(self, name: str, others: int) -> list[str]:
        """Stop if brokers are left: draining onto brokers of unknown load may overload them."""
        unknown = f"no broker reported within {self._request.fresh_s:g} s whether the load reports are fresh"
        if others:
            raise self._stop_error(f"{name} is back, but {unknown}", ExitCode.UNDETERMINED)
        say(f"note: {unknown}")
        return []

    def _cordoned_error(self, name: str, what: str, code: ExitCode = ExitCode.FAILED) -> CommandError:
        hint = f"`statechannel uncordon {name}` lets it take bundles again."
        return self._stop_error(f"{what}; {name} stays cordoned", code, hint)

    def _stop_error(self, what: str, code: ExitCode = ExitCode.FAILED, hint: str = "") -> CommandError:
        again = f"Continue with the same command and --operation {self._request.restart}."
        return CommandError(
            f"{what}; the remaining brokers were not restarted", hint=f"{hint} {again}".strip(), code=code
        )


def _restart_state(member: Member | None, before: str) -> str:
    if member is None:
        return "not alive"
    if member.incarnation == before:
        return "still the old process"
    return "alive, but not yet taking bundles"
