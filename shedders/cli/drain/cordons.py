"""Policies of drains and rolling restarts, distinct from those that operators set.

A drain cordons its broker, until `uncordon`. A rolling restart keeps the balancer from moving bundles, by an override of the
policy `shedding` that it renews and that expires if the command dies.
"""

from __future__ import annotations

from typing import Final

from shedders.cli.policy.write import PolicyWriteResult, put, take_away
from shedders.policies.effective import EffectivePolicies, Force, PolicyEntry
from shedders.policies.kinds import CLUSTER, PolicyKind
from shedders.policies.record import WHY_MAX, PolicyKey, made_key
from shedders.queries.policies import CordonRow, drain_id_of, read_policies
from statechannel.cli.kit.failures import CommandError
from statechannel.clocks import moment, now_ms
from statechannel.conditions.kinds import DRAIN_ENDS
from statechannel.errors import ExitCode, NotFoundError
from statechannel.operations.outcomes import Answer
from statechannel.queries.connection import Connection
from statechannel.queries.registry import read_registry


def key_of(broker: str) -> PolicyKey:
    """Key of the cordon policy of a broker.

    Raises:
        BadPolicyError: `broker` is not a valid broker id.
    """
    return made_key(PolicyKind.CORDON, broker)


def cordon_of(effective: EffectivePolicies, broker: str) -> PolicyEntry | None:
    key = key_of(broker)
    entries = (entry for entry in effective.entries if entry.key == key and entry.force is not Force.LAPSED)
    return next(entries, None)


def drain_remark(row: CordonRow) -> str:
    """What to know of a broker whose drain did not empty it."""
    at = "" if row["drain_ended_ms"] is None else f" {moment(row['drain_ended_ms'])}"
    end = f"{DRAIN_ENDS[row['drain_state'] or '']}{at}"
    return f"still cordoned by the drain of {row['by']} that {end} (`statechannel uncordon {row['broker']}`)"


def cordon(connection: Connection, broker: str, drain: str, *, why: str, by: str | None) -> bool:
    """Cordon a broker for a drain, and return whether it was not cordoned before; an operator's cordon is left as it is.

    Raises:
        CommandError: The cordon was rejected, or its result is unknown.
    """
    before = cordon_of(read_policies(connection, create=True), broker)
    if before is not None and drain_id_of(before) is None:
        reason = f", because: {before.why}" if before.why else ""
        connection.reporter.note(
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
        connection.reporter.note(f"note: {trouble}")
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
        NotFoundError: There is none.
        CommandError: It was not written by a drain, and `force` is not set.
    """
    effective = read_policies(connection)
    before = cordon_of(effective, broker)
    if before is None:
        members = read_registry(connection, listen=False).members
        if broker not in members.alive and broker not in members.lost:
            raise NotFoundError(
                f"broker {broker} is unknown: it is neither alive, nor was it within the last minute, nor is it cordoned",
                hint="`statechannel brokers` lists them; `statechannel policy list --kind cordon` lists all cordons.",
            )
        overridden = any(entry.key == key_of(broker)._replace(override=True) for entry in effective.entries)
        raise NotFoundError(
            f"{broker} is not cordoned" + (" except by an override" if overridden else ""),
            hint=f"`statechannel override end cordon {broker}` ends it."
            if overridden
            else "`statechannel brokers` shows cordons as remarks.",
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
        ending = f"`statechannel override end cordon {broker}` ends it"
        connection.reporter.note(f"note: {broker} is still cordoned by an override; {ending}")
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
    if written.outcome is Answer.REJECTED:
        code = ExitCode.REJECTED if written.error is None else written.error.exit_code
        hint = "" if written.error is None else written.error.hint
        raise CommandError(f"the {what} was not written: {written.reason}", hint=hint, code=code)
    if written.outcome is Answer.UNKNOWN:
        raise CommandError(
            f"unknown whether the {what} was written: {written.reason}",
            hint="Check with `statechannel policy list --kind cordon`; repeating the command is safe.",
            code=ExitCode.UNKNOWN,
        )
