"""`statechannel watch`: accepted changes as they come."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing
from typing import Annotated

import typer

from statechannel.audit.history import HistoryLine, history_fields, history_line
from statechannel.cli.connection import Connection
from statechannel.cli.exit_codes import ExitCode
from statechannel.cli.failures import CommandError
from statechannel.cli.kafka_wait import Pulse
from statechannel.cli.live_log import describe_topic, open_tail
from statechannel.cli.options import Connect, OutputAs, reaching
from statechannel.cli.output import Output, moment, print_json_line, say, stdout
from statechannel.core.inputs import RecordRead, Topic
from statechannel.core.replica import Phase, Replica
from statechannel.core.verdict import REJECTIONS, Verdict
from statechannel.core.view import Judgement
from statechannel.kafka.tail import PartitionTail

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@reaching
def watch(
    connect: Connect,
    namespace: Annotated[str | None, typer.Option("--namespace", metavar="TENANT/NAMESPACE")] = None,
    rejected: Annotated[bool, typer.Option("--rejected", help="Also the records that were rejected.")] = False,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="End after so many changes.")] = None,
    max_seconds: Annotated[
        float | None, typer.Option("--for", metavar="SECONDS", min=0.1, help="End after this.")
    ] = None,
    output: OutputAs = Output.TABLE,
) -> None:
    """Print accepted changes as they come, until interrupted; as JSON, one object a line."""
    connection = connect()
    ends_s = None if max_seconds is None else time.monotonic() + max_seconds
    shown = 0
    with closing(_judged(connection, ends_s)) as lines:
        for line in lines:
            if not _wanted(line, namespace, rejected=rejected):
                continue
            if output is Output.JSON:
                print_json_line(history_fields(line))
            else:
                stdout().print(_text(line), markup=False)
            shown += 1
            if shown == limit:
                return


def _wanted(line: HistoryLine, namespace: str | None, *, rejected: bool) -> bool:
    if line.verdict is not Verdict.ACCEPTED and not (rejected and line.verdict in REJECTIONS):
        return False
    return namespace is None or line.key == namespace or line.key.startswith(f"{namespace}/")


def _text(line: HistoryLine) -> str:
    brokers = f"{line.from_ or '-'} -> {line.to or '-'}" if line.from_ or line.to else ""
    verdict = "" if line.verdict is Verdict.ACCEPTED else f"[{line.verdict.value}]"
    words = (
        moment(line.timestamp_ms),
        f"{line.partition}:{line.offset}",
        line.key,
        verdict,
        f"v{line.version}" if line.version is not None else "",
        line.state or "",
        brokers,
        f"by {line.by}" if line.by else "",
        f"({line.action})" if line.action else "",
        line.operation or "",
        line.reason or "",
        line.note,
    )
    return "  ".join(word for word in words if word)


class _Watched:
    """One partition: read to its end as a joining broker does, then followed."""

    def __init__(self, connection: Connection, tail: PartitionTail, partition: int, partitions: int) -> None:
        self.tail = tail
        self._partition = partition
        self._replica = Replica(
            partition,
            partitions,
            compaction_lag_s=connection.settings.channel.min_compaction_lag_ms / 1_000,
            kept_records_max=connection.settings.limits.kept_records_max,
            kept_max_bytes=connection.settings.limits.kept_max_mib * 2**20,
        )
        self._batches: Iterator[list[RecordRead]] | None = None

    def next(self) -> Iterator[tuple[RecordRead, Judgement]]:
        """What the next batch brings; may be nothing."""
        replica = self._replica
        if self._batches is None:
            self._open()
            return
        before = replica.phase
        for record in next(self._batches):
            judgement = replica.read(time.monotonic(), record)
            if judgement is not None:
                yield record, judgement
        if replica.phase is not before:
            self._tell()
        if replica.phase is Phase.START_OVER:
            self._batches = None

    def close(self) -> None:
        """End the reading."""
        batches, self._batches = self._batches, None
        if isinstance(batches, Generator):
            batches.close()

    def _open(self) -> None:
        span = self.tail.span()
        replica = self._replica
        replica.opened(time.monotonic(), span.low, span.end)
        for record in self.tail.records(span):
            replica.read(time.monotonic(), record)
            if replica.phase is Phase.START_OVER:
                return
        replica.reached(time.monotonic(), span.end)
        self._batches = self.tail.follow(span.end)
        self._tell()

    def _tell(self) -> None:
        replica = self._replica
        if replica.phase is Phase.STOPPED:
            raise CommandError(
                f"partition {self._partition} holds records of format {replica.newer_format}",
                hint="Watch with a newer version of this program.",
                code=ExitCode.NEWER_FORMAT,
            )
        if replica.phase is Phase.BROKEN:
            raise CommandError(
                f"partition {self._partition}: {replica.why}",
                hint="The topic was re-created or cut short; start again.",
                code=ExitCode.TOPIC_BROKEN,
            )
        say(f"partition {self._partition}: {replica.phase.value}" + (f" ({replica.why})" if replica.why else ""))


def _judged(connection: Connection, ends_s: float | None) -> Generator[HistoryLine, None, None]:
    info = describe_topic(connection, Topic.CHANNEL)
    with ExitStack() as stack:
        watched = [
            _Watched(
                connection,
                stack.enter_context(open_tail(connection, Topic.CHANNEL, partition)),
                partition,
                info.partitions,
            )
            for partition in range(info.partitions)
        ]
        for partition in watched:
            stack.callback(partition.close)  # before its reader's connections go
        pulse = Pulse(connection, watched[0].tail)
        while ends_s is None or time.monotonic() < ends_s:
            pulse.beat()
            for partition in watched:
                for record, judgement in partition.next():
                    yield history_line(record, judgement)
