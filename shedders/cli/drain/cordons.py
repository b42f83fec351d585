"""Policies of drains and rolling restarts, distinct from those that operators set.

A drain cordons its broker, until `uncordon`. A rolling restart keeps the balancer from moving bundles, by an override of the
policy `shedding` that it renews and that expires if the command dies.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from typing_extensions import TypedDict

from shedders.cli.policy.write import PolicyWriteResult, book_of, put, take_away
from shedders.policies.effective import EffectivePolicies, Force, PolicyEntry
from shedders.policies.kinds import CLUSTER, PolicyKind
from shedders.policies.record import WHY_MAX, PolicyKey, made_key
from shedders.policies.topic import PolicyWriteOutcome
from statechannel.broker.request_writer import BALANCER
from statechannel.cli.kit.channel_view import not_found
from statechannel.cli.kit.connection import Connection
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.output import moment, say
from statechannel.cli.kit.registry import read_registry
from statechannel.cli.kit.requests import (
    LoggedRequest,
    extension_requests,
    is_timed_out,
    message_of,
)
from statechannel.clocks import now_ms
from statechannel.errors import ExitCode

DRAIN: Final = "drain"
"""The balancer's request."""
IN_PART: Final = "drained-in-part"
"""Its result where bundles were left."""


def key_of(broker: str) -> PolicyKey:
    """Key of the cordon policy of a broker.

    Raises:
        BadPolicyError: `broker` is not a valid broker id.
    """
    return made_key(PolicyKind.CORDON, broker)


def drain_id_of(entry: PolicyEntry | None) -> str | None:
    """Id of the drain that wrote a cordon; None: an operator did, or there is none."""
    return None if entry is None else entry.author.drain


def read_policies(connection: Connection, *, create: bool = False) -> EffectivePolicies:
    return book_of(connection, create=create).at(now_ms())


def cordon_of(effective: EffectivePolicies, broker: str) -> PolicyEntry | None:
    """Cordon policy of a broker, overrides excluded."""
    key = key_of(broker)
    entries = (entry for entry in effective.entries if entry.key == key and entry.force is not Force.LAPSED)
    return next(entries, None)


class DrainState(StrEnum):
    """What has become of the drain that wrote a cordon.

    Attributes:
        FORGOTTEN: The requests topic no longer has it.
    """

    RUNNING = "running"
    DRAINED = "drained"
    LEFT_BUNDLES = "left-bundles"
    TIMED_OUT = "timed-out"
    FAILED = "failed"
    UNANSWERED = "unanswered"
    FORGOTTEN = "forgotten"


_GOES_WELL: Final = frozenset({DrainState.RUNNING, DrainState.DRAINED, DrainState.FORGOTTEN})
_ENDS: Final[Mapping[DrainState, str]] = {
    DrainState.LEFT_BUNDLES: "left bundles",
    DrainState.TIMED_OUT: "timed out",
    DrainState.FAILED: "failed",
}


class CordonRow(TypedDict):
    """A broker that takes no bundles, as an operator or a drain wants it.

    `drain` is the id of the drain that wrote the cordon, null where a person did; the fields of the drain are null then.
    """

    broker: str
    by: str
    why: str
    override: bool
    since_ms: int
    until_ms: int | None
    drain: str | None
    drain_state: DrainState | None
    drain_ended_ms: int | None
    drain_message: str | None


def cordon_rows(connection: Connection, effective: EffectivePolicies) -> list[CordonRow]:
    """The cordons in force, those that cannot be read among them, by broker.

    Raises:
        StateChannelError: The requests cannot be read.
    """
    heads: dict[str, PolicyEntry] = {}
    for entry in effective.entries:
        if entry.key.kind is PolicyKind.CORDON and entry.force in (Force.IN_FORCE, Force.UNREADABLE):
            heads.setdefault(entry.key.name, entry)
    requests = _requests_of(connection, effective)
    return [_row(entry, *requests.get(broker, (None, None))) for broker, entry in sorted(heads.items())]


def _row(entry: PolicyEntry, cordon: PolicyEntry | None, request: LoggedRequest | None) -> CordonRow:
    reply = None if request is None else request.reply
    return {
        "broker": entry.key.name,
        "by": entry.author.person,
        "why": entry.why or entry.trouble,
        "override": entry.key.override,
        "since_ms": entry.logged_at_ms,
        "until_ms": entry.until_ms,
        "drain": drain_id_of(cordon),
        "drain_state": None if cordon is None else _state_of(request),
        "drain_ended_ms": None if request is None else request.replied_ms,
        "drain_message": None if reply is None else message_of(reply.outcome),
    }


def _requests_of(
    connection: Connection, effective: EffectivePolicies
) -> dict[str, tuple[PolicyEntry, LoggedRequest | None]]:
    """Cordons that drains wrote, by broker, each with the newest request of its drain."""
    left = {
        entry.key.name: entry
        for entry in effective.entries
        if entry.key.kind is PolicyKind.CORDON and drain_id_of(entry) is not None and entry.force is not Force.LAPSED
    }
    if not left:
        return {}
    newest: dict[str, LoggedRequest] = {}
    for request in extension_requests(connection, BALANCER, DRAIN):
        newest[str(request.request.args.get("drain") or request.request.id)] = request
    return {broker: (entry, newest.get(drain_id_of(entry) or "")) for broker, entry in left.items()}


def _state_of(request: LoggedRequest | None) -> DrainState:
    if request is None:
        return DrainState.FORGOTTEN
    if request.open:
        return DrainState.RUNNING
    if request.reply is None or request.replied_ms is None:
        return DrainState.UNANSWERED
    outcome = request.reply.outcome
    if outcome.get("answer") == "accepted":
        return DrainState.LEFT_BUNDLES if outcome.get("result") == IN_PART else DrainState.DRAINED
    return DrainState.TIMED_OUT if is_timed_out(outcome) else DrainState.FAILED


class FailedDrain(NamedTuple):
    """A cordon whose drain has ended and left bundles, or failed.

    Attributes:
        why: What its reply says; empty without one.
        end: How it ended, as the end of a sentence, with the time where that is known.
    """

    entry: PolicyEntry
    why: str
    end: str

    def remark(self, *, empty: bool) -> str:
        """What to know of its broker, which has no bundles by now, or still some."""
        name = self.entry.key.name
        left = "it is empty by now" if empty else "bundles are left"
        drain = f"the drain of {self.entry.author.person} that {self.end}"
        return f"still cordoned by {drain}; {left} (`statechannel uncordon {name}`)"


def failed_drains(connection: Connection, effective: EffectivePolicies) -> dict[str, FailedDrain]:
    """Cordons, by broker, whose drain neither runs any more nor emptied its broker.

    Raises:
        StateChannelError: The requests cannot be read.

    Of a drain that the requests topic has forgotten nothing is known.
    """
    return {
        broker: FailedDrain(
            entry, "" if request.reply is None else message_of(request.reply.outcome) or "", _end_of(request)
        )
        for broker, (entry, request) in _requests_of(connection, effective).items()
        if request is not None and _state_of(request) not in _GOES_WELL
    }


def _end_of(request: LoggedRequest) -> str:
    state = _state_of(request)
    if state is DrainState.UNANSWERED or request.replied_ms is None:
        return "ended without an answer"
    return f"{_ENDS[state]} {moment(request.replied_ms)}"


def cordon(connection: Connection, broker: str, drain: str, *, why: str, by: str | None) -> bool:
    """Cordon a broker for a drain, and return whether it was not cordoned before; an operator's cordon is left as it is.

    Raises:
        CommandError: The cordon was rejected, or its result is unknown.
    """
    before = cordon_of(read_policies(connection, create=True), broker)
    if before is not None and drain_id_of(before) is None:
        reason = f", because: {before.why}" if before.why else ""
        say(
            f"note: {broker} is cordoned by {before.author.text or 'an unknown user'} already{reason}; "
            "that cordon is left as it is"
        )
        return False
    if drain_id_of(before) == drain:
        return False
    # Contradictions of policies are reported by the drain, per bundle.
    done = put(connection, key_of(broker), {}, by=by, why=why[:WHY_MAX], until_ms=None, force=True, drain=drain)
    _require(done, f"cordon of {broker}")
    for trouble in done.judged.troubles:
        say(f"note: {trouble}")
    return before is None


def uncordon(
    connection: Connection,
    broker: str,
    *,
    force: bool,
    by: str | None = None,
    why: str | None = None,
    dry_run: bool = False,
) -> PolicyWriteResult:
    """Delete the cordon policy of a broker, unless `dry_run`.

    Args:
        by: Who deletes it; None: who runs the command.

    Raises:
        CommandError: There is none; or it was not written by a drain, and `force` is not set.
    """
    effective = read_policies(connection)
    before = cordon_of(effective, broker)
    if before is None:
        members = read_registry(connection, listen=False).members
        if broker not in members.alive and broker not in members.lost:
            raise not_found(
                f"broker {broker} is unknown: it is neither alive, nor was it within the last minute, nor is it cordoned",
                hint="`statechannel brokers` lists them; `statechannel policy list --kind cordon` lists all cordons.",
            )
        overridden = any(entry.key == key_of(broker)._replace(override=True) for entry in effective.entries)
        raise CommandError(
            f"{broker} is not cordoned" + (" except by an override" if overridden else ""),
            hint=f"`statechannel override end cordon {broker}` ends it."
            if overridden
            else "`statechannel brokers` shows cordons as remarks.",
            code=ExitCode.NOT_FOUND,
        )
    if drain_id_of(before) is None and not force:
        because = f": {before.why}" if before.why else ""
        raise CommandError(
            f"{broker} was cordoned by {before.author.text or 'an unknown user'}, not by a drain{because}",
            hint="Use --force to end it anyway.",
            code=ExitCode.REJECTED,
        )
    done = take_away(connection, key_of(broker), force=force, by=by, why=why, dry_run=dry_run)
    _require(done, f"end of the cordon of {broker}")
    if any(entry.key == key_of(broker)._replace(override=True) for entry in effective.entries):
        say(f"note: {broker} is still cordoned by an override; `statechannel override end cordon {broker}` ends it")
    return done


def take_back(connection: Connection, broker: str, drain: str) -> bool:
    """Delete the cordon that this drain wrote, if it still exists."""
    if drain_id_of(cordon_of(read_policies(connection), broker)) != drain:
        return False
    uncordon(connection, broker, force=False)
    return True


_SHEDDING: Final = made_key(PolicyKind.SHEDDING, CLUSTER)._replace(override=True)


def hold_balancing(connection: Connection, restart: str, within_s: float, *, by: str | None) -> bool:
    """Keep the balancer from moving bundles for this long, unless an operator's override is in force; whether it is kept.

    Raises:
        CommandError: The override was rejected, or its result is unknown.
    """
    before = _hold_of(read_policies(connection, create=True))
    if before is not None and drain_id_of(before) is None:
        return False
    until_ms = now_ms() + round(within_s * 1_000)
    why = f"rolling restart {restart}"
    _require(
        put(connection, _SHEDDING, {"on": False}, by=by, why=why, until_ms=until_ms, force=True, drain=restart),
        "override that keeps the balancer from moving bundles",
    )
    return True


def release_balancing(connection: Connection, restart: str) -> None:
    """Let the balancer move bundles again, if it was this restart that kept it from that.

    Raises:
        CommandError: The end of the override was rejected, or its result is unknown.
    """
    if drain_id_of(_hold_of(read_policies(connection))) == restart:
        _require(take_away(connection, _SHEDDING, force=True), "end of the override of balancing")


def _hold_of(effective: EffectivePolicies) -> PolicyEntry | None:
    return next((entry for entry in effective.entries if entry.key == _SHEDDING), None)


def _require(done: PolicyWriteResult, what: str) -> None:
    written = done.written
    if written is None:
        return
    if written.outcome is PolicyWriteOutcome.REJECTED:
        code = ExitCode.REJECTED if written.error is None else written.error.exit_code
        hint = "" if written.error is None else written.error.hint
        raise CommandError(f"the {what} was not written: {written.reason}", hint=hint, code=code)
    if written.outcome is PolicyWriteOutcome.UNKNOWN:
        raise CommandError(
            f"unknown whether the {what} was written: {written.reason}",
            hint="Check with `statechannel policy list --kind cordon`; repeating the command is safe.",
            code=ExitCode.UNKNOWN,
        )
