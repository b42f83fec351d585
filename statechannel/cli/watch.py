"""Command `statechannel watch`: accepted changes as they happen."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Annotated

from statechannel.audit.moments import LogWindow
from statechannel.cli.kit.channel_view import FollowedPartition, open_followed
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.listing import Writer
from statechannel.cli.kit.options import Connect, OutputAs, commands, option, with_connection
from statechannel.cli.kit.output import Output, print_json_line, say, stdout
from statechannel.cli.kit.progress import TERMINAL
from statechannel.clocks import moment, now_ms
from statechannel.errors import ExitCode
from statechannel.printable import printable
from statechannel.protocol.bundle import is_namespace, partition_of
from statechannel.protocol.log import RecordRead
from statechannel.protocol.replica import Phase
from statechannel.protocol.verdict import REJECTIONS, Verdict
from statechannel.protocol.view import Judgement
from statechannel.queries.audit_log import window_between
from statechannel.queries.connection import Connection
from statechannel.queries.live_log import Pulse
from statechannel.stories.bundle import HistoryLine, history_fields, history_line

app = commands()

OVERRULED_SHOWN = 20
"""Maximum number of keys overruled by a cold start that are listed; the rest is counted."""


@app.command()
@with_connection
def watch(
    connect: Connect,
    namespace: Annotated[str | None, option("--namespace TENANT/NAMESPACE")] = None,
    rejected: Annotated[bool, option("--rejected", "Also show rejected records.")] = False,
    by: Writer = None,
    since: Annotated[
        str | None, option("--since AGE|TIME|OFFSET", "Begin there: 10m (ago), 2026-01-01T00:00:00Z, or an offset.")
    ] = None,
    until: Annotated[str | None, option("--until AGE|TIME|OFFSET", "End there, as --since; inclusive.")] = None,
    limit: Annotated[int | None, option("--limit", "End after this number of changes.", min=1)] = None,
    max_seconds: Annotated[float | None, option("--for SECONDS", "End after this time.", min=0.1)] = None,
    output: OutputAs = Output.TABLE,
) -> None:
    """Print accepted changes as they happen, until interrupted; in JSON, one object per line."""
    window = window_between(since, until, now_ms(), TERMINAL)
    connection = connect().within(max_seconds)
    ends_s = None if max_seconds is None else time.monotonic() + max_seconds
    shown = 0
    with closing(_judged(connection, ends_s, namespace, window)) as lines:
        for line in lines:
            if not _wanted(line, namespace, rejected=rejected) or by not in (None, line.by):
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
    return printable("  ".join(word for word in words if word))


def _next(part: FollowedPartition, window: LogWindow) -> Iterator[tuple[RecordRead, Judgement]]:
    """Judged records of a partition's next batch, possibly none; of those from before the start only what --since asks for."""
    if not part.following:
        for record, judgement in part.open():
            if record.offset >= part.began_at or window.since is not None:
                yield record, judgement
        if part.replica.phase is not Phase.START_OVER:
            _print_phase(part)
        return
    before = part.replica.phase
    yield from part.read(part.wait())
    if part.replica.phase is not before:
        _print_phase(part)


def _print_phase(part: FollowedPartition) -> None:
    replica = part.replica
    if replica.phase is Phase.STOPPED:
        raise CommandError(
            f"partition {part.partition} holds records of format {replica.newer_format}",
            hint="Watch with a newer version of this program.",
            code=ExitCode.NEWER_FORMAT,
        )
    part.refuse_broken()
    say(f"partition {part.partition}: {replica.phase.value}" + (f" ({replica.why})" if replica.why else ""))
    for key, held, asserted in replica.overruled[:OVERRULED_SHOWN]:
        say(f"{key} was overruled by a cold start: {held or 'it did not exist'}; now {asserted or 'it does not exist'}")
    if len(replica.overruled) > OVERRULED_SHOWN:
        say(f"{len(replica.overruled) - OVERRULED_SHOWN} more keys were overruled by a cold start")
    replica.overruled = ()


def _warn_if_unknown(watched: Sequence[FollowedPartition], namespace: str) -> None:
    """Warn about a namespace that does not exist: it may be mistyped, or be created later."""
    if (
        not is_namespace(namespace)
        or watched[partition_of(namespace, len(watched))].replica.view.get(namespace) is None
    ):
        say(f"namespace {namespace} does not exist yet; `statechannel namespace list` lists all")


def _is_over(window: LogWindow, watched: Sequence[FollowedPartition]) -> bool:
    """Whether no later record can lie in the window."""
    until = window.until
    if until is None or not all(part.following for part in watched):
        return False
    return until.time_ms is None or now_ms() > until.time_ms


def _judged(
    connection: Connection, ends_s: float | None, namespace: str | None, window: LogWindow
) -> Generator[HistoryLine, None, None]:
    with ExitStack() as stack:
        watched = open_followed(connection, stack)
        pulse = Pulse(connection, watched[0].tail)
        reported = namespace is None
        while (ends_s is None or time.monotonic() < ends_s) and not _is_over(window, watched):
            pulse.beat()
            for partition in watched:
                for record, judgement in _next(partition, window):
                    if window.has(record.offset, record.timestamp_ms):
                        yield history_line(record, judgement)
            if not reported and namespace is not None and all(partition.following for partition in watched):
                reported = True
                _warn_if_unknown(watched, namespace)
