"""Claims of rolling restarts: at most one restart at a time.

Two would overwrite each other's override of shedding, and each would fill brokers that the other one empties.

A claim is a request in the requests topic with a time limit, which the command renews. Whether it holds follows from the log
alone: the first valid claim wins, so every command that reads the same log has the same answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from shedders.cli.drain.follower import new_id, send
from statechannel.broker.request_writer import BALANCER
from statechannel.cli.kit.failures import CommandError
from statechannel.clocks import moment, now_ms
from statechannel.errors import ExitCode
from statechannel.queries.connection import Connection
from statechannel.queries.live_log import extension_requests
from statechannel.stories.requests import RequestStory

CLAIM: Final = "rolling-restart"
"""The balancer's request; its answer says nothing, as the log does."""
ANSWER_S: Final = 60.0
LEASE_MAX_S: Final = 600_000.0
BROKERS_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class RestartClaim:
    """One claim, or the end of one, in the log.

    Attributes:
        restart: Id of the rolling restart.
        run: Id of the command that executes it: a later one of the same restart takes over.
        brokers: All brokers to restart.
        until_ms: Log time at which it lapses unless it is renewed; `logged_at_ms` or earlier: it ends the claim.
        instead_of: Id of the restart that it replaces; empty: none.
    """

    restart: str
    run: str
    brokers: tuple[str, ...]
    by: str
    offset: int
    logged_at_ms: int
    until_ms: int
    instead_of: str = ""


class RestartUnderWayError(CommandError):
    """Another rolling restart, or another command of the same one, is under way.

    Attributes:
        holder: Its claim; None: it has ended.
    """

    def __init__(self, message: str, holder: RestartClaim | None, *, hint: str) -> None:
        super().__init__(message, hint=hint, code=ExitCode.REJECTED)
        self.code = "restart-under-way"
        self.holder = holder


def holder_of(claims: Iterable[RestartClaim], at_ms: int) -> RestartClaim | None:
    """The claim in force at this time of the log, after these, which are in the order of the log. Pure."""
    holder: RestartClaim | None = None
    replaced: set[tuple[str, str]] = set()
    for claim in claims:
        if (claim.restart, claim.run) in replaced:
            continue
        if holder is not None and claim.logged_at_ms < holder.until_ms:
            if holder.restart not in (claim.restart, claim.instead_of):
                continue
            if (holder.restart, holder.run) != (claim.restart, claim.run):
                replaced.add((holder.restart, holder.run))
        if claim.until_ms > claim.logged_at_ms:
            holder = claim
        elif holder is not None and (holder.restart, holder.run) == (claim.restart, claim.run):
            holder = None
    return holder if holder is not None and at_ms < holder.until_ms else None


def read_claims(connection: Connection) -> list[RestartClaim]:
    """All claims in the log, the oldest first; malformed ones are left out, as anybody may write to the topic."""
    stories = extension_requests(connection, BALANCER, CLAIM)
    return [claim for story in stories if (claim := _parsed(story)) is not None]


def _parsed(story: RequestStory) -> RestartClaim | None:
    args = story.args
    restart, run, instead_of = args.get("restart"), args.get("run"), args.get("instead_of", "")
    lease_s, brokers = args.get("lease_s"), args.get("brokers")
    texts = isinstance(restart, str) and isinstance(run, str) and isinstance(instead_of, str)
    if (
        not texts
        or isinstance(lease_s, bool)
        or not isinstance(lease_s, int | float)
        or not 0 <= lease_s <= LEASE_MAX_S
    ):
        return None
    if not isinstance(brokers, list) or not all(isinstance(name, str) for name in brokers):
        return None
    until_ms = story.asked_ms + round(lease_s * 1_000)
    return RestartClaim(
        str(restart), str(run), tuple(brokers), story.by, story.offset, story.asked_ms, until_ms, str(instead_of)
    )


@dataclass(slots=True)
class ClaimedRestart:
    """The claim of one command.

    Attributes:
        instead_of: Restart that it may replace; empty: none.
        run: Id of this command.
    """

    connection: Connection
    restart: str
    instead_of: str
    by: str | None
    run: str

    @classmethod
    def new(cls, connection: Connection, restart: str, instead_of: str, by: str | None) -> ClaimedRestart:
        return cls(connection, restart, instead_of, by, new_id())

    def check(self) -> None:
        """Refuse what the log refuses already, before anything is written.

        Raises:
            RestartUnderWayError: Another restart is under way.
        """
        holder = holder_of(read_claims(self.connection), now_ms())
        if holder is not None and holder.restart not in (self.restart, self.instead_of):
            raise self._refused(holder)

    def hold(self, brokers: Iterable[str], within_s: float) -> None:
        """Claim, or renew the claim where it would lapse before that time is over.

        Raises:
            RestartUnderWayError: Another restart, or another command of this one, has the claim, or had it in place of this one.
        """
        now = now_ms()
        holder = holder_of(read_claims(self.connection), now)
        if holder is not None and holder.run == self.run and holder.until_ms - now >= within_s * 1_000:
            return
        offset = self._write(brokers, within_s)
        claims = [claim for claim in read_claims(self.connection) if claim.offset <= offset]
        at_ms = claims[-1].logged_at_ms if claims else now
        holder = holder_of(claims, at_ms)
        if holder is None:
            # Only the claims of a command that was replaced do not count, and its successor has ended since.
            raise RestartUnderWayError(
                f"another command has taken over or replaced rolling restart {self.restart}, and has ended; this one stops",
                None,
                hint="`statechannel brokers` shows which brokers were restarted. Begin a new restart for the others.",
            )
        if holder.run != self.run:
            raise self._refused(holder)

    def end(self) -> None:
        self._write((), 0.0)

    def _write(self, brokers: Iterable[str], lease_s: float) -> int:
        args = {
            "restart": self.restart,
            "run": self.run,
            "brokers": list(brokers),
            "lease_s": min(LEASE_MAX_S, lease_s),
            "instead_of": self.instead_of,
        }
        return send(self.connection, CLAIM, args, ANSWER_S, by=self.by).offset

    def _refused(self, holder: RestartClaim) -> RestartUnderWayError:
        until = moment(holder.until_ms)
        if holder.restart == self.restart:
            return RestartUnderWayError(
                f"another command of {holder.by} continues rolling restart {holder.restart}; this one stops",
                holder,
                hint="Watch that one. It goes on with the same brokers.",
            )
        more = ", ..." if len(holder.brokers) > BROKERS_SHOWN else ""
        brokers = ", ".join(holder.brokers[:BROKERS_SHOWN]) + more
        return RestartUnderWayError(
            f"rolling restart {holder.restart} of {holder.by} is under way, of {brokers}: "
            f"its claim ends with it, or {until} if its command is dead",
            holder,
            hint=f"Wait for its end, or continue it with --operation {holder.restart}. If it is not to be continued, "
            f"--instead-of {holder.restart} replaces it.",
        )
