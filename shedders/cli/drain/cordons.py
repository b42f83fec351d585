"""The cordon of a drain: set before, taken back by `uncordon`, told apart from those that people have set."""

from __future__ import annotations

from dataclasses import dataclass

from shedders.cli.policy.write import PolicyWriteResult, book_of, put, take_away
from shedders.policies.effective import EffectivePolicies, Force, PolicyEntry
from shedders.policies.kinds import PolicyKind
from shedders.policies.record import WHY_MAX, PolicyKey, made_key
from shedders.policies.topic import PolicyWriteOutcome
from statechannel.cli.kit.connection import Connection
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.live_log import now_ms
from statechannel.cli.kit.output import say
from statechannel.errors import ExitCode


@dataclass(frozen=True, slots=True)
class Cordoned:
    """A broker that takes nothing.

    Attributes:
        made: By this command; else it was there.
    """

    broker: str
    made: bool


def key_of(broker: str) -> PolicyKey:
    """Key of a broker's standing cordon.

    Raises:
        BadPolicyError: It is no broker id.
    """
    return made_key(PolicyKind.CORDON, broker)


def drained_by(entry: PolicyEntry | None) -> str | None:
    """Id of the drain that wrote a cordon; None where a person did, or there is none."""
    return None if entry is None else entry.author.drain


def standing_of(connection: Connection, *, create: bool = False) -> EffectivePolicies:
    """What holds now."""
    return book_of(connection, create=create).at(now_ms())


def cordon_of(standing: EffectivePolicies, broker: str) -> PolicyEntry | None:
    """The standing cordon of a broker, an override not counted."""
    key = key_of(broker)
    found = (one for one in standing.entries if one.key == key and one.force is not Force.LAPSED)
    return next(found, None)


def cordon(connection: Connection, broker: str, drain: str, *, why: str, by: str | None) -> Cordoned:
    """Cordon a broker for a drain; one that a person has set is left as it is.

    Raises:
        CommandError: It was not written, or nobody knows.
    """
    before = cordon_of(standing_of(connection, create=True), broker)
    if before is not None and drained_by(before) is None:
        said = f", because: {before.why}" if before.why else ""
        say(
            f"note: {broker} is cordoned by {before.author.text or 'an unknown writer'} already{said}; that stays as it is"
        )
        return Cordoned(broker, made=False)
    if drained_by(before) == drain:
        return Cordoned(broker, made=False)
    # What policies cannot be kept together then is for the drain itself to say, bundle by bundle.
    done = put(connection, key_of(broker), {}, by=by, why=why[:WHY_MAX], until_ms=None, force=True, drain=drain)
    _require(done, f"cordon of {broker}")
    for one in done.judged.troubles:
        say(f"note: {one}")
    return Cordoned(broker, made=before is None)


def uncordon(connection: Connection, broker: str, *, force: bool) -> PolicyWriteResult:
    """Delete the standing cordon of a broker.

    Raises:
        CommandError: There is none; or it was not written by a drain, and nobody insists.
    """
    standing = standing_of(connection)
    before = cordon_of(standing, broker)
    if before is None:
        overridden = any(one.key == key_of(broker)._replace(override=True) for one in standing.entries)
        raise CommandError(
            f"{broker} is not cordoned" + (" but by an override" if overridden else ""),
            hint=f"`statechannel override end cordon {broker}` takes it back."
            if overridden
            else "`statechannel brokers` shows under remarks who is.",
            code=ExitCode.NOT_FOUND,
        )
    if drained_by(before) is None and not force:
        because = f": {before.why}" if before.why else ""
        raise CommandError(
            f"{broker} was cordoned by {before.author.text or 'an unknown writer'}, not by a drain{because}",
            hint="--force takes it back all the same.",
            code=ExitCode.REJECTED,
        )
    done = take_away(connection, key_of(broker), force=force)
    _require(done, f"end of the cordon of {broker}")
    if any(one.key == key_of(broker)._replace(override=True) for one in standing.entries):
        say(f"note: an override cordons {broker} still; `statechannel override end cordon {broker}` takes it back")
    return done


def take_back(connection: Connection, broker: str, drain: str) -> bool:
    """Delete the cordon that this drain wrote, if it is there still."""
    if drained_by(cordon_of(standing_of(connection), broker)) != drain:
        return False
    uncordon(connection, broker, force=False)
    return True


def _require(done: PolicyWriteResult, what: str) -> None:
    written = done.written
    if written.outcome is PolicyWriteOutcome.REJECTED:
        code = ExitCode.REJECTED if written.error is None else written.error.exit_code
        hint = "" if written.error is None else written.error.hint
        raise CommandError(f"the {what} was not written: {written.reason}", hint=hint, code=code)
    if written.outcome is PolicyWriteOutcome.UNKNOWN:
        raise CommandError(
            f"it is not known whether the {what} was written: {written.reason}",
            hint="`statechannel policy list --kind cordon` tells; the same command again does no harm.",
            code=ExitCode.UNKNOWN,
        )
