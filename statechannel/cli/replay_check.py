"""Command `statechannel replay-check`: does this version judge an exported log as the one that wrote it?"""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from statechannel.audit.engine import DEFAULT_COMPACTION_LAG_MS
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.options import OutputAs, argument, commands, option
from statechannel.cli.kit.output import Output, print_facts, print_json
from statechannel.cli.kit.progress import progress
from statechannel.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from statechannel.audit.replay_check import ReplayComparison

app = commands()

_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)


@app.command()
def replay_check(
    file: Annotated[Path, argument("LOG", "Export file: `statechannel export LOG --with-verdicts`.")],
    verdicts: Annotated[
        Path | None,
        option(
            "--verdicts FILE",
            "Verdicts of an earlier version (`audit --file LOG --verdicts FILE`), for an export without them.",
        ),
    ] = None,
    digest: Annotated[
        str | None, option("--digest DIGEST", "Digest of the states, as `audit` of an earlier version printed it.")
    ] = None,
    compaction_lag_ms: Annotated[
        int, option("--compaction-lag-ms MS", "`min.compaction.lag.ms` of the exported topic.", min=0)
    ] = DEFAULT_COMPACTION_LAG_MS,
    output: OutputAs = Output.TABLE,
) -> None:
    """Replay an exported log by this version, and compare verdicts and digest with those in the export."""
    from statechannel.audit.replay_check import compare_replay

    known = None if digest is None else digest.strip().lower()
    if known is not None and not _DIGEST.fullmatch(known):
        raise UsageError(
            f"--digest {digest!r} is not a digest of states",
            hint="`audit` prints it: 64 digits and letters from a to f. The shorter one of `export` is that of the file.",
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
        print_json(
            {
                "file": str(file),
                "same": result.same,
                "records": result.records,
                "compared": result.compared,
                "differing": result.differing,
                "first": None if first is None else asdict(first),
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
