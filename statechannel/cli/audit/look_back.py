"""`statechannel lookup --as-of`: who owned a topic or bundle at a moment, by the log."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statechannel.audit.engine import ExportSource, LiveSource, Source
from statechannel.audit.local import NotInLogThenError, OwnerThen, first_created, open_export, owner_then
from statechannel.audit.moments import AsOf
from statechannel.audit.overlaps import HeardIn
from statechannel.audit.transfer.export_file import ExportFile
from statechannel.audit.writers import EXPIRY_MS, WritersHeard
from statechannel.cli.audit.options import moment_of, remark_outside, source_of, writers_of
from statechannel.cli.kit.channel_view import not_found
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.options import Connect
from statechannel.cli.kit.output import duration, moment, print_facts, print_json, say
from statechannel.cli.kit.progress import progress
from statechannel.cli.kit.requests import requests_in, requests_seen
from statechannel.cli.kit.side_files import SideRole, side_records
from statechannel.errors import StateChannelError
from statechannel.http_api.documents import bundle_row
from statechannel.protocol.bundle import parse_key

if TYPE_CHECKING:  # files are read on machines without the Kafka client
    from statechannel.cli.kit.connection import Connection


def look_back(connect: Connect, name: str, as_of: str, file: Path | None, *, table: bool) -> None:
    """Print who owned a topic or bundle at a moment: what `audit history` has in its last line before it."""
    then, when, shown = _then(connect, source_of(file, None, None, connect), name, as_of)
    if table:
        _print(then, shown)
    else:
        print_json(_fields(then, name, as_of, when))


def owner_document(connect: Callable[[], Connection], source: Source, name: str, as_of: str) -> dict[str, Any]:
    """Who owned a topic or bundle at a moment, as `lookup --as-of` prints it in JSON.

    Raises:
        CommandError: It did not exist then.
        AuditQuestionError: The moment is invalid, or the log no longer shows it.
    """
    then, when, _ = _then(connect, source, name, as_of)
    return _fields(then, name, as_of, when)


def _then(connect: Callable[[], Connection], source: Source, name: str, as_of: str) -> tuple[OwnerThen, AsOf, str]:
    when = moment_of(as_of, source)
    shown = moment(when.time_ms) if when.time_ms is not None else f"offset {when.offset}"
    writers = writers_of(source, connect)
    with open_export(source, progress) as export:
        _remark(export, when)
        try:
            then = owner_then(export, name, when, writers=writers)
        except NotInLogThenError as error:
            raise _gone(error, export, name, shown, as_of, source, connect) from error
        _remark_young(export, then, writers)
    return then, when, shown


def _remark(export: ExportFile, when: AsOf) -> None:
    """Say that the moment is outside the log."""
    some = any(when.cut(records).records for records in export.partitions.values())
    whole = all(records[0].offset == 0 for records in export.partitions.values())
    remark_outside(when, export.header.end_offsets.values(), some=some, whole=whole)


def _remark_young(export: ExportFile, then: OwnerThen, writers: WritersHeard | None) -> None:
    """Say that the answer may change, where the registry cannot: a lost owner is noticed later."""
    heard = writers is not None and writers.newest_ms > 0
    later_ms = export.header.exported_at_ms - then.at_ms
    if not heard and then.key.owner is not None and then.gap is None and later_ms < EXPIRY_MS:
        say(
            f"note: the log was read {max(0, later_ms) / 1_000:.1f} s after this moment, and the loss of a broker is noticed "
            f"after about {EXPIRY_MS / 1_000:g} s: this may yet become a gap"
        )


def _gone(
    error: NotInLogThenError,
    export: ExportFile,
    name: str,
    shown: str,
    as_of: str,
    source: Source,
    connect: Callable[[], Connection],
) -> CommandError:
    """That it did not exist then, with who ended it, when, and what followed."""
    ended = error.ended
    parts = parse_key(name.encode())
    namespace = parts.namespace if parts is not None else "/".join(name.split("/")[:2])
    if ended is None:
        created = first_created(export, namespace)
        later = "" if created is None else f": the namespace was created at {_record(created, [])}"
        return not_found(
            f"{error}, as of {shown}{later}",
            hint=f"`statechannel audit history {namespace}` lists when it was created or split.",
        )
    operation = ended["operation"]
    person = None if operation is None else _requester(operation, source, connect)
    began = ended["began"] or ended
    why = [f"requested by {person}"] if person else []
    why += [reason] if (reason := ended["reason"] or began["reason"]) else []
    record = _record(ended, why)
    if ended["relation"] == "namespace":
        return not_found(
            f"namespace {namespace} does not exist as of {shown}: it was deleted at {record}",
            hint=f"`statechannel audit history {namespace}` shows what it had.",
        )
    children = [child["key"] for child in (ended["children"] or {}).get("of_this", ())]
    into = f" into {', '.join(children)}" if children else ""
    hint = f"`statechannel audit history {name}` shows what it was"
    if children:
        hint = f"`statechannel lookup {children[0]} --as-of {as_of}` shows who had a part of it"
    return not_found(f"{name} does not exist as of {shown}: it was split{into} at {record}", hint=f"{hint}.")


def _record(row: Mapping[str, Any], why: Sequence[str]) -> str:
    """Time, writer and place of a record."""
    place = f"{moment(row['timestamp_ms'])} by {row['by']} (offset {row['offset']}"
    return f"{'; '.join((place, *why))})"


def _requester(operation: str, source: Source, connect: Callable[[], Connection]) -> str | None:
    """Who requested an operation, by their own account."""
    if isinstance(source, ExportSource):
        side = side_records(source.path, SideRole.REQUESTS)
        requests = {} if side is None else requests_in(side.records)
    elif isinstance(source, LiveSource):
        try:
            requests = requests_seen(connect())
        except StateChannelError as error:
            say(f"note: the requests could not be read, so who requested it is not known: {error}")
            requests = {}
    else:
        requests = {}
    return (requests.get(operation) or {}).get("by") or None


def _fields(then: OwnerThen, name: str, as_of: str, when: AsOf) -> dict[str, Any]:
    since, changed = then.since or {}, then.changed or {}
    recorded = ("by", "action", "reason", "decision", "began", "note")
    return {
        "name": name,
        "as_of": as_of,
        "as_of_ms": when.time_ms,
        "partition": then.partition,
        "last_offset": then.last_offset,
        **bundle_row(then.key),
        "since_offset": since.get("since_offset"),
        "since_ms": since.get("since_ms"),
        "gap": then.gap,
        "heard_again": then.heard_again,
        "unheard": None if then.unheard is None or then.gap is not None else then.unheard._asdict(),
        "changed_ms": changed.get("timestamp_ms"),
        **{what: changed.get(what) for what in recorded},
    }


def _print(then: OwnerThen, shown: str) -> None:
    key, since, changed = then.key, then.since or {}, then.changed or {}
    state = "-" if key.state is None else key.state.value
    to = f" to {key.bound_for}" if key.bound_for not in (None, key.owner) else ""
    unheard = None if then.unheard is None or then.gap is not None else then.unheard.sentence()
    rows: list[tuple[str, Any]] = [
        ("as of", f"{shown}, inclusive (last offset {then.last_offset} of partition {then.partition})"),
        ("bundle", key.name),
        ("owner", key.owner or "no broker"),
        ("not served", None if then.gap is None or key.owner is None else _unserved(key.owner, then.gap)),
        ("not certain", unheard),
        ("heard again", None if then.heard_again is None else _heard_again(then.heard_again)),
        ("generation", key.generation),
        ("owner since", _place(since.get("since_ms"), since.get("since_offset")) if key.owner else None),
        ("state", f"{state}{to}"),
        ("state since", _place(changed.get("timestamp_ms"), key.offset)),
        ("written by", changed.get("by")),
        ("why", "; ".join(filter(None, (changed.get("action"), changed.get("reason")))) or None),
        ("note", changed.get("note") or None),
        ("operation", key.operation),
        ("started by", None if changed.get("began") is None else _began(changed["began"])),
        ("decision", changed.get("decision")),
    ]
    print_facts([row for row in rows if row[1] is not None])


def _began(began: Mapping[str, Any]) -> str:
    """The first record of an operation."""
    what = "; ".join(filter(None, (began["action"], began["reason"])))
    return f"{began['by']} at offset {began['offset']}" + (f": {what}" if what else "")


def _unserved(owner: str, gap: Mapping[str, Any]) -> str:
    """The gap in service that contains the moment."""
    began = f"{owner} was last heard {moment(gap['start_ms'])}" if gap["cause"] == "owner-lost" else gap["why"]
    ended = "which has not ended" if gap["end_ms"] is None else f"until {moment(gap['end_ms'])}"
    still_ms = gap["stood_still_ms"]
    still = "" if still_ms is None else f"; its process stood still for {duration(still_ms)}"
    return f"{began}, gap {ended}" + (f" (then {gap['to']})" if gap["to"] else "") + still


def _heard_again(lost: Mapping[str, Any]) -> str:
    what = "wrote again" if lost["heard_in"] == HeardIn.LOG else "was heard again"
    return (
        f"{lost['broker']} was lost, but {what} at {moment(lost['heard_ms'])}: it may have served the bundle, at most until then "
        "(`statechannel audit overlaps`)"
    )


def _place(at_ms: int | None, offset: int | None) -> str:
    """Time and offset of a record, as far as the log still has them."""
    if at_ms is None:
        return "unknown: the record was compacted"
    return f"{moment(at_ms)} (offset {offset})"
