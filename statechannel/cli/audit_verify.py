"""`statechannel audit --verify`: what live replicas hold, against what the log says at the same offsets."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

from statechannel.audit.engine import ExportSource, LiveSource, Source
from statechannel.audit.errors import AuditQuestionError
from statechannel.audit.export_file import ExportFile
from statechannel.audit.local import read_log
from statechannel.audit.replica_word import ReplicaWord
from statechannel.audit.verify import Checked, Status, check_words, checked_fields, different, explain, worst
from statechannel.cli.failures import CommandError
from statechannel.cli.options import Connect
from statechannel.cli.output import print_json, print_table, progress
from statechannel.cli.replica_http import ReplicaEndpoint, endpoints_of
from statechannel.errors import ExitCode, StateChannelError

TIMEOUT_S = 15.0


@dataclass(slots=True)
class _Asked:
    """One replica."""

    endpoint: ReplicaEndpoint
    word: ReplicaWord | None = None
    error: str = ""
    checked: list[Checked] = field(default_factory=list)

    @property
    def status(self) -> str:
        return "unreachable" if self.word is None else worst(self.checked).value


def verify(connect: Connect, source: Source, replicas: Sequence[str], *, compaction_lag_ms: int, table: bool) -> None:
    """Ask the replicas, recompute, compare, and tell; ends with 1 where a replica differs, with 4 where one cannot tell.

    Raises:
        StateChannelError: No replica is known, the log cannot be read, or it is one that does not fit.
        typer.Exit: Not all are equal.
    """
    if not isinstance(source, ExportSource | LiveSource):
        raise AuditQuestionError(
            "--verify reads a topic or an export file, not an archive.", hint="Leave --archive and --engine out."
        )
    urls = list(replicas) or _registered(connect, source)
    asked = [_Asked(endpoint) for endpoint in endpoints_of(urls, timeout_s=TIMEOUT_S)]
    for one in asked:
        try:
            one.word = one.endpoint.word()
        except StateChannelError as error:
            one.error = str(error)
    _compare(asked, source, compaction_lag_ms)
    _explain(asked, source, compaction_lag_ms)
    _tell(asked, table=table)
    statuses = {one.status for one in asked}
    if Status.DIFFERENT in statuses:
        raise typer.Exit(ExitCode.FAILED)
    if statuses != {Status.EQUAL.value}:
        raise typer.Exit(ExitCode.UNDETERMINED)


def _registered(connect: Connect, source: Source) -> list[str]:
    """Endpoints of the brokers that the registry hears."""
    if isinstance(source, ExportSource):
        raise AuditQuestionError(
            "A file does not say which replicas there are.", hint="Name them: --replica http://HOST:PORT."
        )
    from statechannel.cli.registry import read_registry  # noqa: PLC0415 - a file is read without a Kafka client

    alive = read_registry(connect()).members.alive
    found = [str(member.info["http"]) for _, member in sorted(alive.items()) if member.info.get("http")]
    if found:
        return found
    raise CommandError(
        "no broker of the registry names an HTTP endpoint" if alive else "no broker is alive",
        hint="Start brokers with observe.metrics_port, or name a replica: --replica http://HOST:PORT.",
        code=ExitCode.NOT_FOUND if alive else ExitCode.NO_BROKER,
    )


def _compare(asked: Sequence[_Asked], source: Source, compaction_lag_ms: int) -> None:
    answered = [(one, one.word) for one in asked if one.word is not None]
    if not answered:
        return
    # The replicas are asked first: the log then reaches at least as far as they do.
    with _log(source) as export:
        partitions = len(export.header.end_offsets)
        for one, word in answered:
            if len(word.partitions) != partitions:
                one.word, one.error = None, f"it has {len(word.partitions)} partitions, and the log {partitions}"
        fitting = [(one, word) for one, word in answered if one.word is not None]
        found = check_words(export, [word for _, word in fitting], compaction_lag_ms=compaction_lag_ms)
        for (one, _), checked in zip(fitting, found, strict=True):
            one.checked = checked


def _explain(asked: Sequence[_Asked], source: Source, compaction_lag_ms: int) -> None:
    """Where a replica differs: by its dump, which is of a later offset, and by the log as it is then."""
    for one in asked:
        wrong = list(different(one.checked))
        if not wrong:
            continue
        try:
            dump = one.endpoint.dump()
        except StateChannelError as error:
            for checked in wrong:
                checked.why = f"no dump to find the difference by: {error}"
            continue
        with _log(source) as export:
            for checked in wrong:
                explain(export, checked, dump, compaction_lag_ms=compaction_lag_ms)


@contextmanager
def _log(source: Source) -> Iterator[ExportFile]:
    if isinstance(source, ExportSource):
        yield read_log(source.path, progress)
    elif isinstance(source, LiveSource):
        with tempfile.TemporaryDirectory(prefix="statechannel-audit-") as folder:
            path = Path(folder) / "export.jsonl"
            source.export(path)
            yield read_log(path, progress, made_here=True)


def _tell(asked: Sequence[_Asked], *, table: bool) -> None:
    if not table:
        print_json({"replicas": [_fields(one) for one in asked]})
        return
    print_table(
        ("broker", "partition", "applied", "status", "digest", "by the log", "why"),
        [row for one in asked for row in _rows(one)],
    )
    for one in asked:
        for checked in different(one.checked):
            first = checked.first
            if first is None:
                continue
            print_table(
                ("what", "value"),
                [
                    ("first difference", f"offset {first['offset']}, key {first['key']}: {first['how']}"),
                    ("by the log", first["log"] or "no such key"),
                    ("in the replica", first["replica"] or "no such key"),
                    ("differing keys", f"{checked.differing:,} (at offset {checked.dump_applied})"),
                ],
                title=f"\n{one.word.broker if one.word else one.endpoint.url}, partition {checked.partition}",
            )


def _rows(one: _Asked) -> Iterator[tuple[object, ...]]:
    if one.word is None:
        yield one.endpoint.url, None, None, one.status, None, None, one.error
        return
    for checked in one.checked:
        yield (
            one.word.broker,
            checked.partition,
            checked.applied,
            checked.status.value,
            _short(checked.digest),
            _short(checked.recomputed),
            checked.why or MEANING[checked.status],
        )


MEANING = {
    Status.EQUAL: "",
    Status.DIFFERENT: "",
    Status.UNKNOWN: "the replica does not know the states itself",
    Status.INCOMPLETE: "the log was compacted, and does not tell the states at this offset",
    Status.BEYOND: "the log ends before this offset",
}


def _short(digest: str | None) -> str | None:
    return None if digest is None else digest[:12]


def _fields(one: _Asked) -> dict[str, Any]:
    word = one.word
    return {
        "url": one.endpoint.url,
        "broker": None if word is None else word.broker,
        "incarnation": None if word is None else word.incarnation,
        "status": one.status,
        "error": one.error or None,
        "partitions": [checked_fields(checked) for checked in one.checked],
    }
