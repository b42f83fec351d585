"""Writes of policies for `policy` and `override`: check against other policies and the cluster, write, report the result."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, NamedTuple

from shedders.balancer.active_strategies import checked
from shedders.balancer.cluster_inputs import ClusterInputs, broker_now
from shedders.balancer.settings import NAME
from shedders.model.amounts import are, count
from shedders.model.cluster import Bundle, Cluster, IsolationPolicy
from shedders.model.patterns import compiled
from shedders.policies.book import PolicyBook
from shedders.policies.contradictions import Contradiction
from shedders.policies.effective import EffectivePolicies, Force, PolicyEntry
from shedders.policies.kinds import BadPolicyError, PolicyKind, canonical
from shedders.policies.record import SYSTEM, Author, PolicyKey, PolicyRecord, encode
from shedders.policies.topic import DeletionNote, PolicyWritten, write_policy
from shedders.queries.policies import book_of, topic_of, unapplied_at
from statechannel.cli.kit.confirmation import say_dry_run
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.fitted_tables import cell
from statechannel.cli.kit.options import option
from statechannel.cli.kit.output import Output, print_json, say, stdout
from statechannel.cli.kit.requests import user_at_host
from statechannel.clocks import duration, moment, now_ms
from statechannel.engine.cluster_view import BrokerSeen
from statechannel.errors import ExitCode, NotFoundError
from statechannel.operations.outcomes import Answer
from statechannel.protocol.bundle import DOTS, is_bundle
from statechannel.queries.channel_view import read_channel
from statechannel.queries.connection import Connection
from statechannel.queries.live_log import naming_address
from statechannel.queries.registry import read_registry

UNMET: Final = "min-available"
"""The contradiction of an isolation policy that asks for more brokers than there are: bundles keep brokers, too few of them."""
_OF_THE_CLUSTER: Final = frozenset(
    {PolicyKind.ISOLATION, PolicyKind.ANTI_AFFINITY, PolicyKind.DOMAIN, PolicyKind.PIN, PolicyKind.CORDON}
)


class PolicyChecks(NamedTuple):
    """Sentences on a policy before it is written or deleted.

    Attributes:
        troubles: Contradictions that the change causes.
        notes: Oddities, and common misunderstandings.
    """

    troubles: Sequence[str] = ()
    notes: Sequence[str] = ()


_COUNT = re.compile(r"\{[^}]*\}")


def matters(key: PolicyKey, *, deleted: bool) -> bool:
    """Whether the change must be checked against the cluster; deleting a cordon restricts nothing."""
    if deleted:
        return key.kind in _OF_THE_CLUSTER and key.kind is not PolicyKind.CORDON
    return key.kind in _OF_THE_CLUSTER or is_bundle(key.name)


def judged(
    key: PolicyKey, before: EffectivePolicies, after: EffectivePolicies, cluster: Cluster, *, deleted: bool, force: bool
) -> PolicyChecks:
    """Contradictions and oddities that the change causes.

    Raises:
        CommandError, NotFoundError: Bundles would get no broker, or its bundle does not exist, and `force` is not set.
    """
    if is_bundle(key.name) and key.name not in cluster.bundles and not deleted and not force:
        raise NotFoundError(
            f"there is no bundle {key.name}",
            hint=f"`statechannel bundles --namespace {key.name.rpartition('/')[0]}` lists those that exist; --force writes it "
            "anyway.",
        )
    if key.kind not in _OF_THE_CLUSTER:
        return PolicyChecks()
    if not cluster.brokers:
        return PolicyChecks(["no broker is alive, so these policies cannot be checked for contradictions"])
    notes = [] if deleted else list(_odd(key, after, cluster))
    known = {(contradiction.kind, contradiction.policies) for contradiction in before.contradictions(cluster)}
    new = [
        contradiction
        for contradiction in after.contradictions(cluster)
        if (contradiction.kind, contradiction.policies) not in known
    ]
    # That no broker may take a bundle follows from the other contradictions, so these come first.
    blocking = sorted(
        (contradiction for contradiction in new if contradiction.blocks or contradiction.kind == UNMET),
        key=lambda contradiction: contradiction.kind == "nobody",
    )
    if blocking and not force:
        more = f"; and {len(blocking) - 1} more" if len(blocking) > 1 else ""
        noted = "".join(f" Note: {note}." for note in notes)
        if not deleted and all(contradiction.kind == UNMET for contradiction in blocking):
            raise CommandError(
                f"the policy cannot be met: {blocking[0].why}{more}",
                hint="Use a smaller min_available, or start more brokers that it matches; --force writes it anyway."
                + noted,
                code=ExitCode.REJECTED,
            )
        raise CommandError(
            f"the remaining policies contradict each other: {sentence(blocking[0])}{more}"
            if deleted
            else f"these policies contradict each other: {sentence(blocking[0])}{more}",
            hint=f"Change or delete one of them{' first' if deleted else ''}; --force "
            f"{'deletes' if deleted else 'writes'} it anyway, and bundles may get no broker.{noted}",
            code=ExitCode.REJECTED,
        )
    return PolicyChecks([sentence(contradiction) for contradiction in new], notes)


def sentence(contradiction: Contradiction) -> str:
    """Names of the policies, and the reason."""
    return f"{', '.join(contradiction.policies)}: {contradiction.why}"


def _odd(key: PolicyKey, after: EffectivePolicies, cluster: Cluster) -> Iterator[str]:
    if key.kind is PolicyKind.ISOLATION:
        every = after.policies.isolation
        at = next((number for number, policy in enumerate(every) if policy.name == key.name), None)
        if at is not None:
            yield from _unmatched(every[at], cluster)
            yield from _shadowed(every, at)

    if key.kind is PolicyKind.PIN:
        yield from _elsewhere(key.name, after.policies.pins, cluster)


def _elsewhere(name: str, pins: Mapping[str, str], cluster: Cluster) -> Iterator[str]:
    """Note on bundles that are served by another broker than the pinned one: a pin does not move them."""
    broker = pins.get(name)
    held = [name] if name in cluster.bundles else [bundle.name for bundle in cluster.bundles_in.get(name, ())]
    # A bundle's own pin takes precedence over that of its namespace.
    away = [
        bundle
        for bundle in sorted(held)
        if cluster.bundles[bundle].owner not in (None, broker) and (bundle == name or bundle not in pins)
    ]
    if broker is None or not away:
        return
    where = (
        f"it is on {cluster.bundles[name].owner}"
        if away == [name]
        else f"{count(len(away), 'bundle')} of it {are(len(away))} on another broker"
    )
    yield (
        f"{where}; a pin does not move bundles; use statechannel transfer "
        f"{away[0] if away == [name] else 'BUNDLE'} --dest {broker}"
    )


def _unmatched(policy: IsolationPolicy, cluster: Cluster) -> Iterator[str]:
    """Notes on patterns that no broker matches, as namespaces that come later would get no broker."""
    for part, texts in (("primary", policy.primary), ("secondary", policy.secondary)):
        if not texts or isinstance(compiled(texts), str):
            continue
        if not _matches(texts, cluster):
            yield f"no known broker matches {part}={','.join(map(str, texts))} of isolation {policy.name}"
        for text in texts:
            if _matches([text], cluster):
                continue
            if "," in _COUNT.sub("", text):
                yield f"`{text}` is one pattern; for several brokers write `{text.replace(',', '|')}`"
            elif _matches([text.lower()], cluster):
                yield f"hosts are matched in lower case; write `{text.lower()}`"


def _matches(texts: Sequence[str], cluster: Cluster) -> bool:
    patterns = compiled(texts)
    return not isinstance(patterns, str) and any(patterns.matches(each.address) for each in cluster.brokers.values())


def _shadowed(every: Sequence[IsolationPolicy], at: int) -> Iterator[str]:
    """Notes on policies without effect, as an earlier one has all their patterns of namespaces."""
    for first, policy in enumerate(every):
        for second in range(first + 1, len(every)):
            hidden = every[second]
            if at in (first, second) and hidden.namespaces and set(hidden.namespaces) <= set(policy.namespaces):
                yield (
                    f"isolation {hidden.name} is never used: isolation {policy.name} comes before it and has the same "
                    "namespaces"
                )


Force_ = Annotated[
    bool, option("--force", "Write it even if policies then contradict each other, or its bundle does not exist.")
]

_SKEW_MS = 5_000


@dataclass(frozen=True, slots=True)
class PolicyWriteResult:
    """Result of writing or deleting a policy.

    Attributes:
        record: None: it was deleted.
        note: Of a deletion: who deletes it, and why.
        written: None: a dry run.
        replaced: Previous record of the key.
        judged: Contradictions and oddities that the change causes.
    """

    key: PolicyKey
    record: PolicyRecord | None
    written: PolicyWritten | None
    replaced: PolicyEntry | None
    judged: PolicyChecks
    note: DeletionNote | None = None

    @property
    def author(self) -> Author | None:
        if self.record is not None:
            return Author.parse(self.record.by)
        return None if self.note is None else Author.parse(self.note.by)

    def fields(self) -> dict[str, Any]:
        record, written = self.record, self.written
        return {
            "kind": str(self.key.kind),
            "name": self.key.name,
            "override": self.key.override,
            "deleted": record is None,
            "value": None if record is None else dict(record.value),
            "by": None if self.author is None else self.author.person,
            "why": self.note.why or None if self.note is not None else None if record is None else record.why,
            "until_ms": None if record is None else record.until_ms,
            "dry_run": written is None,
            "outcome": None if written is None else str(written.outcome),
            "reason": None if written is None else written.reason or None,
            "offset": None if written is None else written.offset,
            "logged_at_ms": None if written is None else written.logged_at_ms,
            "superseded": written is not None and written.superseded,
            "replaced": None if self.replaced is None else self.replaced.fields(),
            "contradictions": list(self.judged.troubles),
            "notes": list(self.judged.notes),
        }


def put(
    connection: Connection,
    key: PolicyKey,
    value: dict[str, Any],
    *,
    by: str | None,
    why: str | None,
    until_ms: int | None,
    force: bool,
    drain: str | None = None,
    dry_run: bool = False,
) -> PolicyWriteResult:
    """Check a policy and write it, unless `dry_run`; for the drain of that id, if one is given.

    Raises:
        BadPolicyError, UnknownSettingError, StrategySettingsError: The policy is invalid.
        CommandError: It would contradict other policies; nothing was written.
    """
    if key.name in DOTS:
        raise BadPolicyError(f"`{key.name}` cannot be the name of a policy: clients drop it from the path of a URL")
    author = Author(by or user_at_host(), drain)
    if drain is None and author.person.startswith(SYSTEM):
        raise _not_a_person(author)
    book = book_of(connection, create=not dry_run)
    at_ms = now_ms()
    before = book.at(at_ms)
    if key.kind is PolicyKind.SETTING:
        name = canonical(key.name)
        key = key._replace(name=name)
        value = {"value": checked(name, value["value"], before.settings)}
    record = PolicyRecord(key, value, author.by, why or "", until_ms, at_ms)
    encoded = encode(record)
    replaced = _newest(before, key)
    book.take(book.position + 1, at_ms, key.encode(), encoded)
    _refuse_too_many(connection, book, new=replaced is None)
    after = book.at(at_ms)
    checks = _judge(connection, key, before, after, deleted=False, force=force)
    notes = [*checks.notes, *unapplied_at(connection, after)]
    written = None if dry_run else _write(connection, key, record)
    return PolicyWriteResult(key, record, written, replaced, checks._replace(notes=notes))


def _not_a_person(author: Author) -> BadPolicyError:
    return BadPolicyError(f"`{author.person}` is not the name of a person: names that begin with {SYSTEM} are reserved")


def _write(
    connection: Connection, key: PolicyKey, record: PolicyRecord | None, note: DeletionNote | None = None
) -> PolicyWritten:
    client, topic = connection.client, topic_of(connection)
    with naming_address(connection):
        return write_policy(client, topic, key, record, timeout_s=connection.timeout_s, note=note)


def _refuse_too_many(connection: Connection, book: PolicyBook, *, new: bool) -> None:
    from shedders.queries.decisions import balancer_settings  # other uses of the module begin sooner without it

    settings, held = balancer_settings(connection), book.bounds
    if (new and held.policies_max > settings.policies_max) or held.bytes_max > settings.policies_bytes:
        raise CommandError(
            f"there would be {held.policies_max} policies of {held.bytes_max} bytes; brokers hold at most "
            f"{settings.policies_max} of {settings.policies_bytes} bytes together, and make no moves if there are more",
            hint=f"Delete some, or raise, for all brokers and this command, extensions.{NAME}.policies_max and "
            f"extensions.{NAME}.policies_bytes.",
            code=ExitCode.REJECTED,
        )


def take_away(
    connection: Connection,
    key: PolicyKey,
    *,
    force: bool,
    by: str | None = None,
    why: str | None = None,
    dry_run: bool = False,
) -> PolicyWriteResult:
    """Check the remaining policies for contradictions, and delete a policy, unless `dry_run`.

    Args:
        by: Who deletes it; None: who runs the command.

    Raises:
        NotFoundError: The policy does not exist.
        CommandError: The remaining ones would contradict each other; nothing was written.
    """
    book = book_of(connection)
    at_ms = now_ms()
    effective = book.at(at_ms)
    replaced = _newest(effective, key)
    if replaced is None and key.kind is PolicyKind.SETTING:
        # A foreign writer may have used the short name of a setting; that record is the one to delete.
        key = key._replace(name=key.name.removeprefix("parts."))
        replaced = _newest(effective, key)
    if replaced is None:
        raise nothing_there(effective, key)
    book.take(book.position + 1, at_ms, key.encode(), None)
    checks = _judge(connection, key, effective, book.at(at_ms), deleted=True, force=force)
    author = Author(by or user_at_host())
    if author.person.startswith(SYSTEM):
        raise _not_a_person(author)
    note = DeletionNote(author.by, why or "")
    written = None if dry_run else _write(connection, key, None, note)
    return PolicyWriteResult(key, None, written, replaced, checks, note)


def nothing_there(effective: EffectivePolicies, key: PolicyKey) -> NotFoundError:
    other = _newest(effective, key._replace(override=not key.override))
    hint = "`statechannel policy list` lists all policies, `statechannel policy history` what was set and deleted."
    if other is not None:
        end = f"statechannel {'policy delete' if key.override else 'override end'} {key.kind} {key.name}"
        hint = f"There is {'a policy' if key.override else 'an override'} of that name: `{end}`."
    what = "override" if key.override else "policy"
    return NotFoundError(f"{what} {key.kind} {key.name} not found", hint=hint)


def report_result(done: PolicyWriteResult, connection: Connection, output: Output) -> None:
    """Print the result, and end the command with its exit code.

    Raises:
        CommandError: The policy was rejected, or the result is unknown.
    """
    if output is Output.JSON:
        print_json(done.fields())
    record, written, replaced = done.record, done.written, done.replaced
    if written is not None and written.outcome is Answer.REJECTED:
        error = written.error
        code = ExitCode.REJECTED if error is None else error.exit_code
        raise CommandError(f"rejected: {written.reason}", hint="" if error is None else error.hint, code=code)
    if written is not None and written.outcome is Answer.UNKNOWN:
        raise CommandError(
            f"unknown: {written.reason}",
            hint=f"Check with `statechannel policy get {done.key.kind} {done.key.name}`.",
            code=ExitCode.UNKNOWN,
        )
    for text in (*done.judged.troubles, *done.judged.notes):
        say(f"note: {text}")
    if written is not None and written.superseded:
        say(f"note: {written.reason}")
    _warn_of_skew(done)
    if output is Output.JSON:
        return
    what, act = cell(done.key.text), "deleted"
    if record is not None:
        act = f"set to {shown(record.value)}" if record.value else "set"
    if written is None:
        in_place = record is not None and replaced is not None and replaced.value
        before = f", in place of {shown(replaced.value)}" if replaced is not None and in_place else ""
        stdout().print(f"{what} would be {act}{before}", markup=False)
        say_dry_run(connection.place)
        return
    end = "" if record is None or record.until_ms is None else f", until {moment(record.until_ms)}"
    stdout().print(f"{what} {act}{end} (offset {written.offset})", markup=False)


def _warn_of_skew(done: PolicyWriteResult) -> None:
    record, logged_at_ms = done.record, None if done.written is None else done.written.logged_at_ms
    if record is None or record.until_ms is None or logged_at_ms is None:
        return
    skew_ms = record.written_at_ms - logged_at_ms
    if abs(skew_ms) > _SKEW_MS:
        word = "ahead of" if skew_ms > 0 else "behind"
        say(
            f"note: this machine's clock is {duration(abs(skew_ms))} {word} Kafka's, by which it expires at "
            f"{moment(record.until_ms)}"
        )


def shown(value: Any) -> str:
    """Fields of a policy in one line."""
    if len(value) == 1:
        return _plain(next(iter(value.values())))
    return " ".join(f"{name}={_plain(part)}" for name, part in value.items() if part != [])


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return ",".join(_plain(part) for part in value)
    return "none" if value is None else str(value)


def live_cluster(connection: Connection) -> Cluster:
    """Live brokers and bundles, without loads."""
    alive = read_registry(connection).members.alive
    seen = [
        BrokerSeen(name, member.incarnation, member.accepting, member.caught_up, 0.0, member.info)
        for name, member in sorted(alive.items())
    ]
    bundles = [key for key in read_channel(connection).live() if not key.is_namespace]
    return Cluster(
        {broker.broker: broker_now(broker, ClusterInputs()) for broker in seen},
        {key.name: Bundle(key.name, key.owner) for key in bundles},
    )


def _newest(effective: EffectivePolicies, key: PolicyKey) -> PolicyEntry | None:
    entries = (entry for entry in (*effective.entries, *effective.lapsed) if entry.key == key)
    return next((entry for entry in entries if entry.force is not Force.LAPSED or not key.override), None)


def _judge(
    connection: Connection,
    key: PolicyKey,
    before: EffectivePolicies,
    after: EffectivePolicies,
    *,
    deleted: bool,
    force: bool,
) -> PolicyChecks:
    """Contradictions and oddities; the cluster is read only if the change matters."""
    if not matters(key, deleted=deleted):
        return PolicyChecks()
    return judged(key, before, after, live_cluster(connection), deleted=deleted, force=force)
