"""The job replay: an archive, an export file or a range of the topic judged again; the audit's answers and the verdicts."""

from __future__ import annotations

import re
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from spark.cli.job import KafkaProperties, Option, SparkConf, job_app, job_main, pairs
from spark.core.running import spark_errors
from spark.core.session import batch_session, stopped
from statechannel.audit.engine import DEFAULT_COMPACTION_LAG_MS, ReadMode, Wants, not_in_full
from statechannel.audit.errors import AuditQuestionError
from statechannel.audit.moments import AsOf, parse_as_of
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.options import BootstrapServers, Channel, ClientProperties, Config, SettingFlags
from statechannel.cli.kit.output import print_json
from statechannel.errors import ExitCode
from statechannel.replay.auditor import GapsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from spark.replay.replay import ReplayLog
    from statechannel.audit.engine import AuditResult

JOB = "replay"
_OFFSETS = re.compile(r"[0-9]{1,18}|[0-9]{1,9}:[0-9]{1,18}(?:,[0-9]{1,9}:[0-9]{1,18})*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is done with a log.

    Attributes:
        compares: The verdicts are held against those of the archive.
        tasks: Parts of the fold; None: by the length of the log.
    """

    wants: Wants = field(default_factory=Wants)
    read: ReadMode = ReadMode.AUTO
    as_of: AsOf | None = None
    compaction_lag_ms: int = DEFAULT_COMPACTION_LAG_MS
    out: str | None = None
    compares: bool = False
    tasks: int | None = None


def replay(
    *,
    archive: Annotated[
        str | None,
        Option("--archive", metavar="DIR", help="A table that the job table-view keeps, or an archive alone."),
    ] = None,
    file: Annotated[Path | None, Option("--file", metavar="F", help="An export file.")] = None,
    bootstrap_servers: BootstrapServers = None,
    channel: Channel = None,
    config: Config = None,
    properties: ClientProperties = None,
    flags: SettingFlags = None,
    kafka_options: KafkaProperties = None,
    from_offsets: Annotated[
        str | None,
        Option("--from-offsets", metavar="N|P:N,...", help="First offset of the topic, or of its partitions."),
    ] = None,
    to_offsets: Annotated[
        str | None, Option("--to-offsets", metavar="N|P:N,...", help="Offset after the last one. Default: the end.")
    ] = None,
    partitions: Annotated[
        int | None, Option("--partitions", metavar="N", min=1, help="Of the channel, for an archive without its view.")
    ] = None,
    as_of: Annotated[
        str | None, Option("--as-of", metavar="OFFSET|TIME", help="Look at this moment, inclusive.")
    ] = None,
    read: Annotated[
        ReadMode, Option("--read", help="Strictly, as a joiner does, or what the log allows.")
    ] = ReadMode.AUTO,
    compaction_lag_ms: Annotated[
        int, Option("--compaction-lag-ms", min=0, help="min.compaction.lag.ms of the topic.")
    ] = DEFAULT_COMPACTION_LAG_MS,
    out: Annotated[
        str | None, Option("--out", metavar="DIR", help="Write the verdicts to DIR/verdicts, as Parquet.")
    ] = None,
    gaps: Annotated[bool, Option("--gaps", help="List the gaps in service.")] = False,
    races: Annotated[bool, Option("--races", help="Count who was rejected in favour of whom.")] = False,
    owned: Annotated[bool, Option("--owned", help="List who served what, and since when.")] = False,
    moves: Annotated[bool, Option("--moves", help="Count the changes of owner by hour of log time and cause.")] = False,
    tasks: Annotated[
        int | None, Option("--tasks", metavar="N", min=1, help="Parts of the fold. Default: by the length of the log.")
    ] = None,
    conf: SparkConf = None,
) -> None:
    """Judge a log again: the audit's answer as JSON, verdicts as a table; an archive's verdicts are compared."""
    ranged = from_offsets is not None or to_offsets is not None
    named = {"--archive": archive, "--file": file, "--bootstrap-servers": bootstrap_servers}
    sources = [option for option, value in named.items() if value is not None]
    if len(sources) > 1 or (ranged and (archive is not None or file is not None)):
        what = f"{sources[0]} and {sources[1]}" if len(sources) > 1 else f"{sources[0]} and a range of offsets"
        raise AuditQuestionError(f"{what} exclude each other.", hint="Name one of them.")
    wanted = Wanted(
        Wants(gaps=gaps, races=races, owned=owned, moves=moves),
        read,
        None if as_of is None else parse_as_of(as_of),
        compaction_lag_ms,
        out,
        compares=archive is not None,
        tasks=tasks,
    )
    start, until = _offsets(from_offsets, "--from-offsets"), _offsets(to_offsets, "--to-offsets")
    settings = pairs(conf, "--conf")
    java = pairs(kafka_options, "--kafka-option")
    live = None
    if archive is None and file is None:
        # Help is read on machines that have no Kafka client.
        from statechannel.cli.kit.connection import connect

        live = connect(bootstrap_servers, channel, config, properties, flags)
    jars = None if live is not None else ()
    with spark_errors(), stopped(batch_session(f"statechannel {JOB}", settings, jars)) as session:
        from spark.replay.logs import archive_log, export_log, topic_log

        @contextmanager
        def opened() -> Iterator[ReplayLog]:
            if file is not None:
                with export_log(session, file) as log:
                    yield log
            elif archive is not None:
                yield archive_log(session, archive, partitions=partitions)
            elif live is not None:
                yield topic_log(
                    session, live.client, live.settings.channel.name, properties=java, start=start, until=until
                )

        answer = run(session, opened, wanted)
    print_json(answer)
    refuse_differences(answer)


def run(session: SparkSession, opened: Callable[[], Any], wanted: Wanted) -> dict[str, Any]:
    """Replay a log in a session; what is printed of it.

    Raises:
        StateChannelError: The log cannot be read, or cannot be read in full.
    """
    from spark.replay.fold import VERDICT
    from spark.replay.replay import Replay, ReplayRequest
    from spark.replay.verdicts import compared, verdicts_of, write_verdicts

    request = ReplayRequest(
        wanted.read,
        wanted.as_of,
        wanted.compaction_lag_ms,
        wanted.wants,
        verdicts=wanted.out is not None or wanted.compares,
    )
    with spark_errors(), opened() as log, Replay(session, log, request, tasks=wanted.tasks) as replayed:
        try:
            result = replayed.run()
        except GapsError as error:
            raise not_in_full(log.name, str(error), verdicts=False) from error
        answer = _fields(result)
        verdicts = verdicts_of(replayed.findings(VERDICT))
        if wanted.compares and log.stored is not None:
            answer["compared"] = compared(log.stored, verdicts, outside=replayed.outside(), stops=replayed.stops())
        if wanted.out is not None:
            write_verdicts(verdicts, wanted.out, result.answer["records"])
    return answer


def refuse_differences(answer: dict[str, Any]) -> None:
    """See that the archive holds the verdicts that were recomputed.

    Raises:
        CommandError: It does not; names the first that differs.
    """
    comparison = answer.get("compared")
    if comparison is None or not comparison["differing"]:
        return
    first = comparison["first"]
    raise CommandError(
        f"the archive differs in {comparison['differing']} verdicts, first at offset {first['offset']} of partition "
        f"{first['partition']}: it holds {first['stored']}, the replay says {first['verdict']}",
        hint="Either the archive was changed, or it was written by another version; --out has all verdicts.",
        code=ExitCode.FAILED,
    )


def _fields(result: AuditResult) -> dict[str, Any]:
    parts = {"gaps": result.gaps, "races": result.races, "owned": result.owned, "moves": result.moves}
    return result.answer | {name: list(part) for name, part in parts.items() if part is not None}


def _offsets(text: str | None, option: str) -> Callable[[int], int | None]:
    if text is None:
        return lambda _: None
    if not _OFFSETS.fullmatch(text):
        raise AuditQuestionError(
            f"{option} {text!r} is neither an offset nor one for each partition.",
            hint="Examples: 1000, or 0:1000,1:2000.",
        )
    if ":" not in text:
        everywhere = int(text)
        return lambda _: everywhere
    by_partition = {int(number): int(offset) for number, offset in (value.split(":") for value in text.split(","))}
    return by_partition.get


app = job_app(replay)
main = partial(job_main, app, "python -m spark.jobs.replay")


if __name__ == "__main__":
    sys.exit(main())
