"""`statechannel policy export|import`: backup of a channel's policies (design/backup.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import orjson

from shedders.cli.options import write_file
from shedders.policies.effective import PolicyEntry
from shedders.policies.record import PolicyKey, PolicyRecord, decode, decode_key, encode
from shedders.policies.topic import write_policy
from shedders.queries.policies import book_of, topic_of
from statechannel.cli.kit.confirmation import say_dry_run
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.options import Connect, OutputAs, argument, option, with_connection
from statechannel.cli.kit.output import Output, print_json, say
from statechannel.cli.kit.progress import progress
from statechannel.clocks import now_ms
from statechannel.errors import ExitCode
from statechannel.files import UnreadableFileError, load_json, read_bytes
from statechannel.operations.outcomes import Answer
from statechannel.protocol.side_record import InvalidRecord
from statechannel.queries.connection import Connection
from statechannel.queries.live_log import naming_address

_FORMAT = 1
_NAMED = 5
_HINT = "Write the file again with `statechannel policy export FILE`."


@with_connection
def export_policies(
    connect: Connect, file: Annotated[Path, argument("FILE", "Output file.")], output: OutputAs = Output.TABLE
) -> None:
    """Write the policies to a file, one per line, without expired overrides."""
    connection = connect()
    at_ms = now_ms()
    entries = book_of(connection).at(at_ms).entries
    unreadable = [entry.key.text for entry in entries if entry.trouble]
    records = {entry.key: _record(entry) for entry in entries if not entry.trouble}
    header = {"policies": _FORMAT, "topic": topic_of(connection).name, "exported_at_ms": at_ms}
    lines = [orjson.dumps(header), *(_line(record) for record in records.values())]
    write_file(file, b"".join(line + b"\n" for line in lines))
    for name in unreadable:
        say(f"note: {name} cannot be read and is not in the file; it forbids until it is set or deleted")
    if output is Output.JSON:
        print_json({"file": str(file), "policies": len(records), "unreadable": unreadable})
    else:
        say(f"{len(records)} policies written to {file}")


@with_connection
def import_policies(
    connect: Connect,
    file: Annotated[Path, argument("FILE", "File written by `statechannel policy export`.")],
    dry_run: Annotated[bool, option("--dry-run", "Report what would be written, without writing.")] = False,
    output: OutputAs = Output.TABLE,
) -> None:
    """Write the policies of a file that do not exist yet; existing policies are not changed."""
    wanted = _read(file)
    connection = connect()
    at_ms = now_ms()
    lapsed = [key for key, record in wanted.items() if record.until_ms is not None and record.until_ms <= at_ms]
    there = {entry.key: entry for entry in book_of(connection, create=not dry_run).at(at_ms).entries}
    missing, other = [], []
    for key, record in wanted.items():
        if key in lapsed:
            continue
        existing = there.get(key)
        if existing is None:
            missing.append(record)
        elif existing.trouble or _comparable(_record(existing)) != _comparable(record):
            other.append(key.text)
    if other:
        raise CommandError(
            f"existing policies differ from {file}: {', '.join(other[:_NAMED])}"
            + (f" and {len(other) - _NAMED} more" if len(other) > _NAMED else ""),
            hint="Delete them with `statechannel policy delete`, or remove them from the file. Nothing was written.",
            code=ExitCode.REJECTED,
        )
    if not dry_run:
        _write(connection, missing)
    found_count = len(wanted) - len(missing) - len(lapsed)
    if output is Output.JSON:
        counts = {"policies": len(wanted), "written": 0 if dry_run else len(missing), "missing": len(missing)}
        print_json({"file": str(file), "dry_run": dry_run, **counts, "found": found_count, "lapsed": len(lapsed)})
        return
    done = "would be written" if dry_run else "written"
    say(f"{len(missing)} policies {done}, {found_count} existed, {len(lapsed)} overrides have expired")
    if dry_run:
        say_dry_run(connection.place)


def _write(connection: Connection, records: list[PolicyRecord]) -> None:
    with progress("writing policies", len(records), unit="policies") as update, naming_address(connection):
        for number, record in enumerate(records):
            ended = write_policy(
                connection.client, topic_of(connection), record.key, record, timeout_s=connection.timeout_s
            )
            if ended.outcome is not Answer.ACCEPTED:
                code = ExitCode.UNKNOWN if ended.outcome is Answer.UNKNOWN else ExitCode.KAFKA_FAILED
                raise CommandError(
                    f"{record.key.text}: {ended.outcome}: {ended.reason}",
                    hint=f"{number} policies are written. Run the same command again to write the rest.",
                    code=code,
                )
            update(number + 1)


def _record(entry: PolicyEntry) -> PolicyRecord:
    return PolicyRecord(entry.key, entry.value, entry.by, entry.why, entry.until_ms, entry.written_at_ms)


def _comparable(record: PolicyRecord) -> PolicyRecord:
    return replace(record, written_at_ms=0, value=dict(record.value))


def _line(record: PolicyRecord) -> bytes:
    return orjson.dumps({"key": record.key.text, "value": orjson.loads(encode(record))})


def _read(file: Path) -> Mapping[PolicyKey, PolicyRecord]:
    """Read the policies of a file.

    Raises:
        CommandError: The file cannot be read, or a line is not a policy; the message names the line.
    """
    try:
        lines = read_bytes(file).splitlines()
    except UnreadableFileError as error:
        raise CommandError(f"{file} {error}", hint="Check the path.", code=ExitCode.BAD_EXPORT) from error
    policies: dict[PolicyKey, PolicyRecord] = {}
    for number, line in enumerate(lines, start=1):
        record = _header(line) if number == 1 else _policy(line)
        if isinstance(record, str):
            raise CommandError(f"{file}, line {number}: {record}", hint=_HINT, code=ExitCode.BAD_EXPORT)
        if record is not None:
            policies[record.key] = record
    if not lines:
        raise CommandError(f"{file} is empty: it has no header", hint=_HINT, code=ExitCode.BAD_EXPORT)
    return policies


def _header(line: bytes) -> str | None:
    loaded = _object(line)
    if loaded is None or loaded.get("policies") != _FORMAT:
        return f"the first line is not a header of exported policies, format {_FORMAT}"
    return None


def _policy(line: bytes) -> PolicyRecord | str:
    loaded = _object(line)
    key, value = (None, None) if loaded is None else (loaded.get("key"), loaded.get("value"))
    if not isinstance(key, str) or not isinstance(value, dict):
        return "not a JSON object with `key` and `value`"
    record = decode(decode_key(key.encode(errors="replace")), orjson.dumps(value))
    return record.why if isinstance(record, InvalidRecord) else record


def _object(line: bytes) -> dict[str, object] | None:
    try:
        loaded = load_json(line)
    except ValueError:
        return None
    return loaded if isinstance(loaded, dict) else None
