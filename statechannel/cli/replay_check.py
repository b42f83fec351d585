"""Command `statechannel replay-check`: does this version judge an exported log as the one that wrote it?"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from statechannel.audit.engine import DEFAULT_COMPACTION_LAG_MS
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.options import OutputAs
from statechannel.cli.kit.output import Output, print_facts, print_json
from statechannel.cli.kit.progress import progress
from statechannel.errors import ExitCode

if TYPE_CHECKING:
    from statechannel.audit.replay_check import ReplayComparison

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)


@app.command()
def replay_check(
    file: Annotated[
        Path, typer.Argument(metavar="LOG", help="Export file: `statechannel export LOG --with-verdicts`.")
    ],
    verdicts: Annotated[
        Path | None,
        typer.Option(
            "--verdicts",
            metavar="FILE",
            help="Verdicts of an earlier version (`audit --file LOG --verdicts FILE`), for an export without them.",
        ),
    ] = None,
    digest: Annotated[
        str | None,
        typer.Option(
            "--digest", metavar="DIGEST", help="Digest of the states, as `audit` of an earlier version printed it."
        ),
    ] = None,
    compaction_lag_ms: Annotated[
        int,
        typer.Option("--compaction-lag-ms", metavar="MS", min=0, help="`min.compaction.lag.ms` of the exported topic."),
    ] = DEFAULT_COMPACTION_LAG_MS,
    output: OutputAs = Output.TABLE,
) -> None:
    """Replay an exported log by this version, and compare verdicts and digest with those in the export."""
    from statechannel.audit.replay_check import compare_replay

    known = None if digest is None else digest.strip().lower()
    if known is not None and not _DIGEST.fullmatch(known):
        raise CommandError(
            f"--digest {digest!r} is not a digest of states",
            hint="`audit` prints it: 64 digits and letters from a to f. The shorter one of `export` is that of the file.",
            code=ExitCode.USAGE,
        )
    result = compare_replay(
        file, verdicts=verdicts, digest=known, progress=progress, compaction_lag_ms=compaction_lag_ms
    )
    if result.compared == 0 and result.recorded_digest is None and result.records:
        raise CommandError(
            f"{file} has no verdicts and no digest of states: there is nothing to compare with",
            hint="Export with `--with-verdicts`; or let the version that wrote the log judge it, "
            "`audit --file LOG --verdicts FILE`, and give FILE and the digest that it prints (--verdicts, --digest).",
            code=ExitCode.UNDETERMINED,
        )
    _print(file, result, output)
    if not result.same:
        raise typer.Exit(ExitCode.FAILED)


def _print(file: Path, result: ReplayComparison, output: Output) -> None:
    first = result.first
    if output is Output.JSON:
        place: dict[str, Any] | None = None
        if first is not None:
            place = {
                "partition": first.partition,
                "offset": first.offset,
                "key": first.key,
                "recorded": first.recorded,
                "now": first.now,
                "why": first.why,
            }
        print_json(
            {
                "file": str(file),
                "same": result.same,
                "records": result.records,
                "compared": result.compared,
                "differing": result.differing,
                "first": place,
                "digest": {"recorded": result.recorded_digest, "now": result.digest, "fast": result.fast_digest},
                "recorded_by": result.software or None,
            }
        )
        return
    rows: list[tuple[str, object]] = [
        ("result", "the same" if result.same else "different"),
        ("records", f"{result.records:,}, {result.compared:,} of them compared"),
        ("verdicts", "the same" if result.differing == 0 else f"{result.differing:,} differ"),
        ("digest of the states", _digests(result)),
    ]
    if result.software:
        rows.append(("recorded by", f"version {result.software}"))
    if first is not None:
        recorded, now = first.recorded or "not judged", first.now or "not judged"
        why = f" ({first.why})" if first.why else ""
        where = f"offset {first.offset} of partition {first.partition}, key {first.key!r}"
        rows.append(("first difference", f"{where}: {recorded} then, {now} now{why}"))
    print_facts(rows)


def _digests(result: ReplayComparison) -> str:
    if result.fast_digest != result.digest:
        return f"{result.digest}, but {result.fast_digest} by the fast path of replays: this is a bug"
    if result.recorded_digest is None:
        return f"{result.digest}; none was recorded"
    if result.recorded_digest == result.digest:
        return f"the same, {result.digest}"
    return f"{result.recorded_digest} then, {result.digest} now"
