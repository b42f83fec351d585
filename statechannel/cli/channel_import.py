"""Command `statechannel import`: an exported channel, imported into an empty one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Annotated, Any

from ulid import ULID

from statechannel.audit.engine import DEFAULT_COMPACTION_LAG_MS
from statechannel.audit.transfer.export_file import ExportFile, read_export, size_bytes
from statechannel.audit.transfer.import_plan import DEFAULT_HEADROOM, ImportPlan, PlannedNamespace, plan_import
from statechannel.audit.transfer.import_run import Importer, ImportStage, ImportWrite
from statechannel.audit.views import LogViews, read_views
from statechannel.cli.audit.options import remark_unchained
from statechannel.cli.kit.confirmation import say_dry_run
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.fitted_tables import Column
from statechannel.cli.kit.options import Connect, OutputAs, argument, commands, option, with_connection
from statechannel.cli.kit.output import Output, print_json, print_rows, print_table, say
from statechannel.cli.kit.progress import progress
from statechannel.cli.status.figures import stopped_of
from statechannel.clocks import moment, now_ms
from statechannel.engine.effects import Append
from statechannel.engine.inputs import AppendFailed, Input
from statechannel.errors import ExitCode
from statechannel.kafka.topics import verify_topics
from statechannel.kafka.writer import LogWriter
from statechannel.protocol.digest import digest
from statechannel.protocol.log import Topic
from statechannel.queries.connection import Connection
from statechannel.queries.live_log import describe_topic, notify_if_slow, open_tail
from statechannel.queries.registry import live_writers, read_registry

app = commands()


@app.command()
@with_connection
def import_(
    connect: Connect,
    file: Annotated[Path, argument("FILE", "Export file, written by `statechannel export`.")],
    namespaces: Annotated[
        list[str] | None, option("--namespace TENANT/NAMESPACE", "Only this namespace; may be repeated.")
    ] = None,
    headroom: Annotated[
        int, option("--headroom", "Distance of the new versions above those of the file.", min=1)
    ] = DEFAULT_HEADROOM,
    accept_tentative: Annotated[
        bool, option("--accept-tentative", "Import even if the file may hide accepted records (tentative).")
    ] = False,
    compaction_lag_ms: Annotated[
        int, option("--compaction-lag-ms", "Compaction lag of the exported topic (min.compaction.lag.ms).", min=0)
    ] = DEFAULT_COMPACTION_LAG_MS,
    dry_run: Annotated[bool, option("--dry-run", "Check everything and show the plan; write nothing.")] = False,
    output: OutputAs = Output.TABLE,
) -> None:
    """Import an exported channel into an empty one: same rings and owners, higher generations."""
    remark_unchained(file)
    export, views = _read(file, compaction_lag_ms)
    _refuse_doubtful(file, views, accepted=accept_tentative)
    plan = plan_import((part.view for part in views.parts), only=namespaces or (), headroom=headroom)
    # Only from here on a Kafka is needed: what the file cannot give is said without one.
    connection = connect()
    with notify_if_slow(connection):
        verify_topics(connection.client, connection.topics, timeout_s=connection.timeout_s)
        channel = describe_topic(connection, Topic.CHANNEL)
    refuse_live_brokers(connection)
    header = export.header
    judged = digest(part.view for part in views.parts)
    source = {"topic": header.topic, "exported_at_ms": header.exported_at_ms, "digest": judged}
    importer = Importer(
        plan,
        channel.partitions,
        incarnation=str(ULID()),
        new_id=lambda: str(ULID()),
        about=f"imported from {header.topic}, exported {moment(header.exported_at_ms)}",
        facts={"source": source},
        now_ms=now_ms,
    )
    survey(connection, importer)
    already = importer.stage is ImportStage.DONE
    if not dry_run and not already:
        with progress(f"importing into {connection.topics.channel}", plan.records, unit="records") as advance:
            carry_out(connection, importer, advance)
    result = {
        "import": plan.operation,
        "source": {"file": str(file), **source, "tentative": views.tentative, "stopped": stopped_of(views)},
        "target": {
            "bootstrap_servers": connection.client.bootstrap_servers,
            "channel": connection.topics.channel,
            "context": connection.context or None,
            "partitions": len(importer.views),
        },
        "dry_run": dry_run,
        "already": already,
        "records": plan.records,
        "found": importer.counts.present,
        "written": importer.counts.written,
        "gone_on": None if already or dry_run else importer.gone_on(),
        "digest": None if already or dry_run else digest(importer.views),
        "namespaces": [_namespace(namespace) for namespace in plan.namespaces],
        "owners": dict(sorted(plan.owners.items())),
    }
    if output is Output.JSON:
        print_json(result)
    else:
        _show(plan, result, is_lost=bool(live_writers(connection).positions_lost))


def _read(file: Path, compaction_lag_ms: int) -> tuple[ExportFile, LogViews]:
    with progress(f"reading {file.name}", size_bytes(file), unit="bytes") as advance:
        export = read_export(file, progress=advance)
    with progress("judging", export.records, unit="records") as advance:
        return export, read_views(export, compaction_lag_ms=compaction_lag_ms)


def _refuse_doubtful(file: Path, views: LogViews, *, accepted: bool) -> None:
    """Refuse a tentative or incomplete file, unless --accept-tentative is given."""
    whys = []
    for part in views.parts:
        if part.stop is not None:
            whys.append(
                f"partition {part.view.partition} stops at offset {part.stop.offset}, at a record of format "
                f"{part.stop.format}: later records were not judged"
            )
        if part.tentative:
            whys.append(
                f"partition {part.view.partition} was compacted, and no heartbeat in it vouches for the remaining records: "
                f"its states are tentative"
            )
    for why in whys:
        if accepted:
            say(f"note: {why}")
    if whys and not accepted:
        raise CommandError(
            f"{file}: {'; '.join(whys)}",
            hint="Export again while a broker runs, with a version that reads the format; or import the file as it is, "
            "which may have other owners and lower versions: --accept-tentative.",
            code=ExitCode.REJECTED,
        )


def _namespace(namespace: PlannedNamespace) -> dict[str, Any]:
    forced = sum(owner is not None for owner in namespace.owners)
    return {
        "namespace": namespace.name,
        "state": "Deleted" if namespace.deleted else "Active",
        "bundles": 0 if namespace.deleted else len(namespace.owners),
        "forced": forced,
        "unassigned": 0 if namespace.deleted else len(namespace.owners) - forced,
        "in_flight": dict(sorted(namespace.in_flight.items())),
        "highest_version": namespace.highest,
        "first_version": namespace.version,
    }


def _show(plan: ImportPlan, result: dict[str, Any], *, is_lost: bool) -> None:
    """Print what was imported.

    Args:
        is_lost: Brokers had read what the channel under this name does not have.
    """
    print_rows(
        (
            "namespace",
            "state",
            "bundles",
            Column("to their owners", of="forced"),
            "unassigned",
            Column(
                "in flight",
                1,
                of=lambda row: ", ".join(f"{number} {state}" for state, number in row["in_flight"].items()),
            ),
            Column("highest version", 2, of="highest_version"),
            Column("begins at", 2, of="first_version"),
        ),
        result["namespaces"],
    )
    print_table(("broker", "bundles"), list(result["owners"].items()), title="\nOwners", empty="no bundle has an owner")
    target = result["target"]
    named = f" (context {target['context']})" if target["context"] else ""
    where = f"channel {target['channel']} at {target['bootstrap_servers']}{named}"
    if result["already"]:
        say(f"{where} already has this import ({plan.operation}); nothing was written")
    elif result["dry_run"]:
        say(f"{result['records'] - result['found']} of {result['records']} records would be written")
        say_dry_run(where)
    else:
        say(f"{result['written']} records written to {where}, {result['found']} already present ({plan.operation})")
        if result["gone_on"]:
            say(
                f"note: {result['gone_on']} keys were changed by brokers since the import began; they were left as they are"
            )
        if result["owners"]:
            say(
                f"Now start these brokers together{_ONE_ACCEPTS if is_lost else ''}: bundles of a broker "
                "without a heartbeat within membership.expiry_s are reassigned. Until then they are Assigning; "
                "`statechannel bundles` shows them."
            )


_ONE_ACCEPTS = ", one of them with --accept-lost-head (brokers had read other records under this name)"
_AGAIN = "Run the same command again: it resumes the import."
_CLOSE_S = 5.0

Advance = Callable[[int], None]


def refuse_live_brokers(connection: Connection) -> None:
    """Refuse an import while brokers serve the channel.

    Raises:
        CommandError: A broker is alive.
    """
    alive = sorted(read_registry(connection).members.alive)
    if alive:
        raise CommandError(
            f"brokers are alive on this channel: {', '.join(alive)}",
            hint="Stop them, import, and start them again: live brokers would assign the bundles themselves.",
            code=ExitCode.REJECTED,
        )


def survey(connection: Connection, importer: Importer) -> None:
    """Read the target to its end as of now.

    Raises:
        ImportRefusedError: It is not empty, and its content is not this import.
    """
    for partition in range(len(importer.views)):
        with open_tail(connection, Topic.CHANNEL, partition) as tail:
            for record in tail.records(tail.span()):
                importer.take(record)
    importer.surveyed()


def carry_out(connection: Connection, importer: Importer, advance: Advance) -> None:
    """Write what is missing, one partition after the other, between marks in all of them.

    Args:
        advance: Called with the number of records of the plan that are present.

    Raises:
        ImportRefusedError: Another process writes to the channel.
        CommandError: Kafka refused a record, or its outcome is unknown.
    """
    with _Writing(connection, importer, advance).open() as writing:
        while importer.stage is not ImportStage.DONE:
            for partition in range(len(importer.views)):
                if importer.stage is ImportStage.RECORDS:
                    writing.records(partition)
                else:
                    writing.mark(partition)
            importer.go_on()


class _Writing:
    """A writer, and a reader of one partition at a time."""

    def __init__(self, connection: Connection, importer: Importer, advance: Advance) -> None:
        self._connection = connection
        self._importer = importer
        self._advance = advance
        self._failures: SimpleQueue[str] = SimpleQueue()
        self._tokens = 0
        self._window = connection.settings.limits.pending_max

    @contextmanager
    def open(self) -> Iterator[_Writing]:
        names = {Topic.CHANNEL: self._connection.topics.names[Topic.CHANNEL]}
        self._writer = LogWriter(
            self._connection.client, names, self._reported, on_failure=lambda error: self._failures.put(repr(error))
        )
        try:
            yield self
        finally:
            self._writer.close(_CLOSE_S)

    def records(self, partition: int) -> None:
        importer, window = self._importer, self._window
        self._until(partition, lambda: importer.writes(partition, window), lambda: importer.is_written(partition))

    def mark(self, partition: int) -> None:
        wanted = self._importer.marks(partition)
        if wanted is not None:
            mark = [wanted]
            self._until(
                partition, lambda: [mark.pop()] if mark else [], lambda: self._importer.marks(partition) is None
            )

    def _until(self, partition: int, writes: Callable[[], Iterable[ImportWrite]], done: Callable[[], bool]) -> None:
        """Write and read back until it is done."""
        importer, counts = self._importer, self._importer.counts
        if done():
            return
        progress_s, timeout_s = time.monotonic(), self._connection.timeout_s
        with open_tail(self._connection, Topic.CHANNEL, partition) as tail:
            self._append(writes())
            for batch in tail.follow(importer.position(partition)):
                for record in batch:
                    importer.take(record)
                self._advance(counts.present + counts.written)
                if done():
                    return
                self._append(writes())
                self._check()
                if batch:
                    progress_s = time.monotonic()
                elif time.monotonic() - progress_s > timeout_s:
                    raise CommandError(
                        f"Kafka at {self._connection.client.bootstrap_servers} has not returned the written records "
                        f"for {timeout_s:g} s",
                        hint=_AGAIN,
                        code=ExitCode.UNKNOWN,
                    )

    def _append(self, writes: Iterable[ImportWrite]) -> None:
        for write in writes:
            self._tokens += 1
            self._writer.append(Append(self._tokens, Topic.CHANNEL, *write))

    def _reported(self, report: Input) -> None:
        if isinstance(report, AppendFailed):
            self._failures.put(report.error)

    def _check(self) -> None:
        try:
            error = self._failures.get_nowait()
        except Empty:
            return
        raise CommandError(f"Kafka did not confirm a record: {error}", hint=_AGAIN, code=ExitCode.UNKNOWN)
