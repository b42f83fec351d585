"""Policies of drains and rolling restarts, distinct from those that operators set.

A drain cordons its broker, until `uncordon`. A rolling restart keeps the balancer from moving bundles, by an override of the
policy `shedding` that it renews and that expires if the command dies.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from shedders.cli.policy.write import PolicyWriteResult, book_of, put, take_away
from shedders.policies.effective import EffectivePolicies, Force, PolicyEntry
from shedders.policies.kinds import CLUSTER, PolicyKind
from shedders.policies.record import WHY_MAX, PolicyKey, made_key
from shedders.policies.topic import PolicyWriteOutcome
from statechannel.broker.request_writer import BALANCER
from statechannel.cli.kit.channel_view import not_found
from statechannel.cli.kit.connection import Connection
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.live_log import now_ms
from statechannel.cli.kit.output import moment, say
from statechannel.cli.kit.registry import read_registry
from statechannel.cli.kit.requests import (
    LoggedRequest,
    extension_requests,
    is_timed_out,
    message_of,
)
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


def drained_by(entry: PolicyEntry | None) -> str | None:
    """Id of the drain that wrote a cordon; None: an operator did, or there is none."""
    return None if entry is None else entry.author.drain


def standing_of(connection: Connection, *, create: bool = False) -> EffectivePolicies:
    return book_of(connection, create=create).at(now_ms())


def cordon_of(effective: EffectivePolicies, broker: str) -> PolicyEntry | None:
    """Cordon policy of a broker, overrides excluded."""
    key = key_of(broker)
    entries = (entry for entry in effective.entries if entry.key == key and entry.force is not Force.LAPSED)
    return next(entries, None)


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
    left = {
        entry.key.name: entry
        for entry in effective.entries
        if entry.key.kind is PolicyKind.CORDON and drained_by(entry) is not None and entry.force is not Force.LAPSED
    }
    if not left:
        return {}
    newest: dict[str, LoggedRequest] = {}
    for request in extension_requests(connection, BALANCER, DRAIN):
        newest[str(request.request.args.get("drain") or request.request.id)] = request
    drains = {broker: (entry, newest.get(drained_by(entry) or "")) for broker, entry in left.items()}
    return {
        broker: FailedDrain(
            entry, "" if request.reply is None else message_of(request.reply.outcome) or "", _end_of(request)
        )
        for broker, (entry, request) in drains.items()
        if request is not None and not _goes_well(request)
    }


def _end_of(request: LoggedRequest) -> str:
    if request.reply is None or request.replied_ms is None:
        return "ended without an answer"
    outcome = request.reply.outcome
    accepted = outcome.get("answer") == "accepted"
    ended = "left bundles" if accepted else "timed out" if is_timed_out(outcome) else "failed"
    return f"{ended} {moment(request.replied_ms)}"


def _goes_well(request: LoggedRequest) -> bool:
    """Whether a drain runs, or has emptied its broker."""
    if request.open:
        return True
    outcome = {} if request.reply is None else request.reply.outcome
    return outcome.get("answer") == "accepted" and outcome.get("result") != IN_PART


def cordon(connection: Connection, broker: str, drain: str, *, why: str, by: str | None) -> bool:
    """Cordon a broker for a drain, and return whether it was not cordoned before; an operator's cordon is left as it is.

    Raises:
        CommandError: The cordon was rejected, or its result is unknown.
    """
    before = cordon_of(standing_of(connection, create=True), broker)
    if before is not None and drained_by(before) is None:
        reason = f", because: {before.why}" if before.why else ""
        say(
            f"note: {broker} is cordoned by {before.author.text or 'an unknown user'} already{reason}; "
            "that cordon is left as it is"
        )
        return False
    if drained_by(before) == drain:
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
    effective = standing_of(connection)
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
    if drained_by(before) is None and not force:
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
    if drained_by(cordon_of(standing_of(connection), broker)) != drain:
        return False
    uncordon(connection, broker, force=False)
    return True


_SHEDDING: Final = made_key(PolicyKind.SHEDDING, CLUSTER)._replace(override=True)


def hold_balancing(connection: Connection, restart: str, within_s: float, *, by: str | None) -> bool:
    """Keep the balancer from moving bundles for this long, unless an operator's override is in force; whether it is kept.

    Raises:
        CommandError: The override was rejected, or its result is unknown.
    """
    before = _hold_of(standing_of(connection, create=True))
    if before is not None and drained_by(before) is None:
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
    if drained_by(_hold_of(standing_of(connection))) == restart:
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
