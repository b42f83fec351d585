"""Commands `statechannel audit verify`: live replicas compared with the log at the same offsets; and `verify-export`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Annotated, Any, NamedTuple

import orjson
import typer

from statechannel.audit.engine import ExportSource, Source
from statechannel.audit.errors import AuditQuestionError, ExportFileError
from statechannel.audit.local import open_export, read_log
from statechannel.audit.transfer.line import ExportHeader, is_digest
from statechannel.audit.verify import (
    ReplicaDump,
    ReplicaWord,
    ReplicaWordError,
    VerifiedPartition,
    VerifyStatus,
    check_words,
    checked_fields,
    different,
    explain,
    parse_dump,
    parse_word,
    worst,
)
from statechannel.cli.audit.options import CompactionLag, File, lag_of, source_of
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.fitted_tables import Column, toned
from statechannel.cli.kit.options import BootstrapServers, Connect, OutputAs, with_connection
from statechannel.cli.kit.output import Output, print_facts, print_json, print_rows, print_table, stdout
from statechannel.cli.kit.progress import progress
from statechannel.clocks import moment
from statechannel.errors import ExitCode, StateChannelError
from statechannel.queries.side_files import SideRole, SideStatus, require_topic_of, side_file, side_status

TIMEOUT_S = 15.0


@dataclass(slots=True)
class _Asked:
    endpoint: ReplicaEndpoint
    word: ReplicaWord | None = None
    error: str = ""
    checked: list[VerifiedPartition] = field(default_factory=list)

    @property
    def status(self) -> str:
        return "unreachable" if self.word is None else worst(self.checked).value


@with_connection
def verify(
    connect: Connect,
    file: File = None,
    bootstrap_servers: BootstrapServers = None,
    replicas: Annotated[
        list[str] | None,
        typer.Option(
            "--replica", metavar="URL", help="Replica to verify; may be repeated. Default: all in the registry."
        ),
    ] = None,
    compaction_lag_ms: CompactionLag = None,
    output: OutputAs = Output.TABLE,
) -> None:
    """Compare the digests of live replicas with the log's at the same offsets; exit code 1 if one differs."""
    source = source_of(file, None, bootstrap_servers, connect)
    lag_ms = lag_of(compaction_lag_ms, connect)
    urls = replicas or _registered(connect, source)
    asked = [_Asked(endpoint) for endpoint in endpoints_of(urls, timeout_s=TIMEOUT_S)]
    for replica in asked:
        try:
            replica.word = replica.endpoint.word()
        except StateChannelError as error:
            replica.error = str(error)
    _compare(asked, source, lag_ms)
    _explain(asked, source, lag_ms)
    _print(asked, table=output is not Output.JSON)
    statuses = {replica.status for replica in asked}
    if VerifyStatus.DIFFERENT in statuses:
        raise typer.Exit(ExitCode.FAILED)
    if statuses != {VerifyStatus.EQUAL.value}:
        raise typer.Exit(ExitCode.UNDETERMINED)


_NOT_PROVEN = (
    "Equal digests show that replicas follow this log. They do not show who wrote its records: processes that may write to the "
    "topic are trusted (design/security.md). `statechannel audit origins` lists what nothing asked for."
)
_EXPORT_NOT_PROVEN = (
    "A matching chain shows that no line was edited, removed, inserted or moved. This is not a signature: a file that was "
    "rewritten as a whole has a matching chain too, so compare the digest with one that was kept elsewhere (--digest). It does "
    "not show who wrote the records."
)


_SIDE_WORDS = {
    SideStatus.COVERED: "covered by the digest of the export",
    SideStatus.UNCOVERED: "not covered by the digest of the export, which is of an earlier version",
    SideStatus.UNCHAINED: "no digest: whether it was edited is unknown",
    SideStatus.MISSING: "missing",
    SideStatus.REPLACED: "edited or rewritten, or of another export",
    SideStatus.FOREIGN: "not made with the export",
}


def verify_export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Export file.")],
    digest: Annotated[
        list[str] | None,
        typer.Option(
            "--digest",
            metavar="DIGEST",
            help="Digest that `export` printed when the file was made; may be repeated, for the files beside one of an "
            "earlier version.",
        ),
    ] = None,
    output: OutputAs = Output.TABLE,
) -> None:
    """Check that an export and the files next to it were not edited; with --digest, that it is the one that was made then."""
    digests = {text.strip().lower() for text in digest or ()}
    for text in digest or ():
        if not is_digest(text.strip().lower()):
            raise CommandError(
                f"--digest {text!r} is not the digest of an export",
                hint="`export` prints it: 32 digits and letters from a to f. The longer one of `audit` is that of the states.",
                code=ExitCode.USAGE,
            )
    export = read_log(file, progress)
    header = export.header
    named = ", ".join(sorted(digests))
    if header.digest is None and digests:
        raise ExportFileError(
            f"{file} has no digest of its records, so it is not the export with the digest {named}: the digests were removed, "
            "or an earlier version made it."
        )
    if header.digest is None:
        raise CommandError(
            f"{file} has no digest of its records: whether it was edited is unknown",
            hint="An earlier version made it, or the digests were removed. Give a digest that was kept elsewhere (--digest).",
            code=ExitCode.UNDETERMINED,
        )
    if digests and header.digest not in digests:
        raise ExportFileError(
            f"{file} has the digest {header.digest}, not {named}: it is another export, or was rewritten as a whole.",
            hint="Look for the file that was made then.",
        )
    if header.replay is not None and not header.replay.covered:
        raise CommandError(
            f"{file}: its records are unchanged, but its digest, of an earlier version, does not cover its verdicts",
            hint="Export it again with this version, or compare with a verdict file that was kept: `replay-check --verdicts`.",
            code=ExitCode.UNDETERMINED,
        )
    sides = _sides_of(file, header)
    _require_known(file, header, sides, digests)
    fields: dict[str, Any] = {
        "file": str(file),
        "topic": header.topic,
        "digest": header.digest,
        "compared": bool(digests),
        "records": export.records,
        "end_offsets": {str(number): end for number, end in sorted(header.end_offsets.items())},
        "exported_at_ms": header.exported_at_ms,
    }
    fields["beside"] = {
        str(side.path): {"topic": side.header.topic, "digest": side.header.digest, "status": side.status.value}
        for side in sides
        if side.header is not None
    }
    if output is Output.JSON:
        print_json(fields)
        return
    chain = "every line follows from the one before it"
    rows = [
        ("chain", f"{chain}, and the digest is the given one" if digests else chain),
        ("digest", header.digest),
        ("topic", header.topic),
        ("records", f"{export.records:,}"),
        ("exported", moment(header.exported_at_ms)),
        *(
            (f"beside: {side.header.topic}", f"{side.header.digest}, {_SIDE_WORDS[side.status]}")
            for side in sides
            if side.header is not None
        ),
    ]
    print_table(("what", "value"), rows)
    stdout().print(f"\n{_EXPORT_NOT_PROVEN}", markup=False)


class _Side(NamedTuple):
    path: Path
    header: ExportHeader | None
    status: SideStatus


def _sides_of(file: Path, header: ExportHeader) -> list[_Side]:
    """Those that exist or should.

    Raises:
        ExportFileError: One was edited.
    """
    sides = []
    for role in SideRole:
        path = side_file(file, role)
        side = read_log(path, progress).header if os.path.lexists(path) else None
        if side is not None:
            require_topic_of(file, role, side.topic)
        status = side_status(header, role, side)
        if status is not None:
            sides.append(_Side(path, side, status))
    return sides


def _require_known(file: Path, header: ExportHeader, sides: Sequence[_Side], digests: Collection[str]) -> None:
    """Refuse an export whose other files are not the ones that were made with it, or may not be.

    Raises:
        ExportFileError: One is certainly another one.
        CommandError: It is unknown.
    """
    own = {header.digest, *(side.header.digest for side in sides if side.header is not None)}
    others = sorted(set(digests) - own)
    if others:
        raise ExportFileError(
            f"neither {file} nor a file next to it has the digest {', '.join(others)}: one of them is of another export, or was "
            "rewritten as a whole.",
            hint="Look for the files that were made then.",
        )
    wrong = [side for side in sides if side.status in (SideStatus.REPLACED, SideStatus.FOREIGN)]
    if wrong:
        raise ExportFileError(
            f"{file} itself is unchanged, but not what is next to it: {_named(wrong)}.",
            hint="Look for the files that were made then; commands refuse an edited file, and do not read one that was not made "
            "with the export.",
        )
    unknown = [
        side
        for side in sides
        if side.status in (SideStatus.MISSING, SideStatus.UNCHAINED)
        or (
            digests
            and side.status is SideStatus.UNCOVERED
            and side.header is not None
            and side.header.digest not in digests
        )
    ]
    if unknown:
        missing = all(side.status is SideStatus.MISSING for side in unknown)
        raise CommandError(
            f"{file} itself is unchanged, but whether all that was made with it is so is unknown: {_named(unknown)}",
            hint="Look for the files that were made then."
            if missing
            else "Give the digests that `export` printed for them, too (--digest, once for each file).",
            code=ExitCode.UNDETERMINED,
        )


def _named(sides: Sequence[_Side]) -> str:
    return "; ".join(f"{side.path}: {_SIDE_WORDS[side.status]}" for side in sides)


def _registered(connect: Connect, source: Source) -> list[str]:
    if isinstance(source, ExportSource):
        raise AuditQuestionError(
            "An export file does not list the replicas.", hint="Name them: --replica http://HOST:PORT."
        )
    from statechannel.queries.registry import read_registry

    alive = read_registry(connect()).members.alive
    urls = [str(member.info["http"]) for _, member in sorted(alive.items()) if member.info.get("http")]
    if urls:
        return urls
    raise CommandError(
        "no live broker has an HTTP endpoint" if alive else "no broker is alive",
        hint="Digests are served at observe.metrics_port, which is off by default, also in processes that embed a broker: set it "
        "and restart the brokers one by one, or give the address of a replica (--replica http://HOST:PORT). `statechannel audit` "
        "judges the log alone.",
        code=ExitCode.NOT_FOUND if alive else ExitCode.NO_BROKER,
    )


def _compare(asked: Sequence[_Asked], source: Source, compaction_lag_ms: int) -> None:
    answered = [(replica, replica.word) for replica in asked if replica.word is not None]
    if not answered:
        return
    # The replicas are asked first: the log then reaches at least as far as they do.
    with open_export(source, progress) as export:
        partitions = len(export.header.end_offsets)
        for replica, word in answered:
            if len(word.partitions) != partitions:
                replica.word, replica.error = (
                    None,
                    f"it has {len(word.partitions)} partitions, the log has {partitions}",
                )
        fitting = [(replica, word) for replica, word in answered if replica.word is not None]
        results = check_words(export, [word for _, word in fitting], compaction_lag_ms=compaction_lag_ms)
        for (replica, _), checked in zip(fitting, results, strict=True):
            replica.checked = checked


def _explain(asked: Sequence[_Asked], source: Source, compaction_lag_ms: int) -> None:
    """Find the first difference from the replica's dump, taken at a later offset, and the log up to that offset."""
    for replica in asked:
        wrong = list(different(replica.checked))
        if not wrong:
            continue
        try:
            dump = replica.endpoint.dump()
        except StateChannelError as error:
            for checked in wrong:
                checked.why = f"the difference cannot be located without a dump: {error}"
            continue
        with open_export(source, progress) as export:
            for checked in wrong:
                explain(export, checked, dump, compaction_lag_ms=compaction_lag_ms)


def _print(asked: Sequence[_Asked], *, table: bool) -> None:
    if not table:
        print_json({"replicas": [_fields(replica) for replica in asked]})
        return
    print_rows(
        (
            "broker",
            "partition",
            "applied",
            Column("status", of=lambda row: toned(row["status"])),
            Column("digest", 4, of=lambda row: _short(row["digest"])),
            Column("by the log", 4, of=lambda row: _short(row["recomputed"])),
            Column("why", text=True),
        ),
        [row for replica in asked for row in _rows(replica)],
    )
    stdout().print(f"\n{_NOT_PROVEN}", markup=False)
    for replica in asked:
        for checked in different(replica.checked):
            first = checked.first
            if first is None:
                continue
            print_facts(
                [
                    ("first difference", f"offset {first['offset']}, key {first['key']}: {first['how']}"),
                    ("by the log", first["log"] or "absent"),
                    ("in the replica", first["replica"] or "absent"),
                    ("differing keys", f"{checked.differing:,} (at offset {checked.dump_applied})"),
                ],
                title=f"\n{replica.word.broker if replica.word else replica.endpoint.url}, partition {checked.partition}",
            )


def _rows(replica: _Asked) -> Iterator[dict[str, Any]]:
    if replica.word is None:
        nothing = dict.fromkeys(("partition", "applied", "digest", "recomputed"))
        yield {**nothing, "broker": replica.endpoint.url, "status": replica.status, "why": replica.error}
        return
    for checked in replica.checked:
        why = checked.why or MEANING[checked.status]
        yield checked_fields(checked) | {"broker": replica.word.broker, "why": why}


MEANING = {
    VerifyStatus.EQUAL: "",
    VerifyStatus.DIFFERENT: "",
    VerifyStatus.UNKNOWN: "the replica's states are unknown to itself",
    VerifyStatus.INCOMPLETE: "the log was compacted, and no longer holds the states at this offset",
    VerifyStatus.BEYOND: "the log ends before this offset",
}


def _short(digest: str | None) -> str | None:
    return None if digest is None else digest[:12]


def _fields(replica: _Asked) -> dict[str, Any]:
    word = replica.word
    return {
        "url": replica.endpoint.url,
        "broker": None if word is None else word.broker,
        "incarnation": None if word is None else word.incarnation,
        "status": replica.status,
        "error": replica.error or None,
        "partitions": [checked_fields(checked) for checked in replica.checked],
    }


WORD_MAX_BYTES = 4 << 20
DUMP_MAX_BYTES = 1 << 30
LINE_MAX_BYTES = 4 << 20


class ReplicaEndpoint:
    """One broker's endpoint.

    Args:
        url: `http://HOST:PORT`.
        timeout_s: Bound of a request, from the connection to the last byte; a dump may take ten times as long.

    Raises:
        CommandError: The address is invalid.
    """

    def __init__(self, url: str, *, timeout_s: float) -> None:
        from statechannel.http_client import is_http_url

        self.url = url.rstrip("/")
        if not is_http_url(self.url):
            raise CommandError(
                f"{url!r} is not the URL of a replica", hint="Use http://HOST:PORT.", code=ExitCode.USAGE
            )
        self._timeout_s = timeout_s

    def word(self) -> ReplicaWord:
        """Digests, with their offsets.

        Raises:
            CommandError: The replica does not answer.
            ReplicaWordError: The answer is not a digest.
        """
        with self._answer("/digest", WORD_MAX_BYTES, self._timeout_s) as answer:
            return parse_word(answer.read())

    def dump(self) -> ReplicaDump:
        """All states.

        Raises:
            CommandError: The replica does not answer.
            ReplicaWordError: The answer is not a dump.
        """
        with self._answer("/dump", DUMP_MAX_BYTES, 10 * self._timeout_s) as answer:
            return parse_dump(iter(lambda: answer.readline(LINE_MAX_BYTES), b""))

    @contextmanager
    def _answer(self, path: str, max_bytes: int, timeout_s: float) -> Iterator[IO[bytes]]:
        from statechannel.http_client import HttpRefusedError, HttpTooLongError, HttpUnansweredError, download

        with tempfile.TemporaryFile() as answer:
            try:
                download(self.url + path, answer, timeout_s=timeout_s, max_bytes=max_bytes)
            except HttpTooLongError as error:
                raise ReplicaWordError(
                    f"{self.url}{path}: {error}.", hint="Check that it is a broker's endpoint."
                ) from error
            except HttpRefusedError as error:
                raise self._refused(path, error.status, error.body) from error
            except HttpUnansweredError as error:
                raise CommandError(
                    f"{self.url}{path} does not answer: {error}",
                    hint="Check that the broker runs and serves HTTP (observe.metrics_port), or give its --replica URL.",
                    code=ExitCode.UNDETERMINED,
                ) from error
            answer.seek(0)
            yield answer

    def _refused(self, path: str, status: int, body: bytes) -> CommandError:
        message, hint = f"status {status}", ""
        try:
            answer = orjson.loads(body)
            message, hint = str(answer["error"]), str(answer.get("hint") or "")
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
            pass  # not an endpoint of ours, or an old one: the status is all there is
        return CommandError(f"{self.url}{path} refuses: {message}", hint=hint, code=ExitCode.UNDETERMINED)


def endpoints_of(urls: Sequence[str], *, timeout_s: float) -> list[ReplicaEndpoint]:
    return [ReplicaEndpoint(url, timeout_s=timeout_s) for url in dict.fromkeys(urls)]
