"""What a campaign found: runs, faults by kind, gaps by cause, violations with the seeds that replay them.

`python -m tests.faults.report FOLDER...` adds up several.
"""

import platform
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import orjson
import psutil


def percentiles(values: Iterable[float | None], unit: float = 1.0) -> dict[str, Any]:
    """Count, p50, p99 and the largest."""
    known = sorted(value * unit for value in values if value is not None)
    if not known:
        return {"count": 0}
    at = [known[min(len(known) - 1, int(len(known) * share))] for share in (0.5, 0.99)]
    return {"count": len(known), "p50": round(at[0]), "p99": round(at[1]), "max": round(known[-1])}


def summarise(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One document for all runs, each given as its own line of `runs.jsonl`."""
    faults: Counter[str] = Counter()
    operations: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    ends: Counter[str] = Counter()
    gaps: dict[str, list[float]] = defaultdict(list)
    outages: dict[str, list[float]] = defaultdict(list)
    figures = [result["figures"] for result in results if result["figures"].get("faults")]
    for run in figures:
        faults.update(run["faults"])
        operations.update(run["operations"])
        calls.update(run.get("calls", {}))
        ends.update(run["ends"])
        for cause, length_ms in run["gaps_ms"]:
            gaps[cause].append(length_ms)
        for kind, length_ms in run.get("outages_by_fault_ms", ()):
            outages[kind].append(length_ms)
    rules = Counter(rule for result in results for rule in result["violations"])
    return {
        "runs": len(results),
        "minutes": round(sum(result["seconds"] for result in results) / 60, 1),
        "with_lease": sum(result["plan"]["lease_s"] is not None for result in results),
        "with_three_nodes": sum(result["plan"]["nodes"] > 1 for result in results),
        "with_partitions": sum(result["plan"].get("partitions", 1) > 1 for result in results),
        "with_balancing": sum(result["plan"].get("balancing", False) for result in results),
        "with_compaction": sum(result["plan"]["compacting"] for result in results),
        "records": sum(figure["records"] for figure in figures),
        "records_cleaned": sum(figure["records_cleaned"] for figure in figures),
        "faults": sum(faults.values()),
        "faults_by_kind": dict(sorted(faults.items())),
        "gaps_ms_by_cause": {cause: percentiles(lengths) for cause, lengths in sorted(gaps.items())},
        "client_outages_ms": percentiles(length for figure in figures for length in figure["outages_ms"]),
        "client_outages_ms_by_fault": {kind: percentiles(lengths) for kind, lengths in sorted(outages.items())},
        "healthy_after_ms": percentiles((s for figure in figures for s in figure["healthy_s"]), 1_000),
        "served_beside_a_sick_member_ms": percentiles(
            (s for figure in figures for s in figure.get("beside_s", ())), 1_000
        ),
        "served_after_health_ms": percentiles((s for figure in figures for s in figure["served_s"]), 1_000),
        "stale_lookup_max_ms": max((figure["stale_lookups_ms"]["max"] for figure in figures), default=0),
        "stale_writes_without_lease": sum(figure["stale_writes"] for figure in figures),
        "writes": sum(figure["writes"] for figure in figures),
        "lookups": sum(figure["lookups"] for figure in figures),
        "operations": dict(sorted(operations.items())),
        "moves_by_brokers": sum(figure.get("moves_by_brokers", 0) for figure in figures),
        "calls": dict(sorted(calls.items())),
        "calls_answered": sum(count for kind, count in calls.items() if not kind.endswith(("not-served", "unknown"))),
        "stored": sum(figure.get("stored", 0) for figure in figures),
        "fenced_writes": sum(figure.get("fenced_writes", 0) for figure in figures),
        "fenced_opens": sum(figure.get("fenced_opens", 0) for figure in figures),
        "services": sum(figure.get("services", 0) for figure in figures),
        "overlaps_with_lease": _overlaps(results, lease=True),
        "overlaps_without_lease": _overlaps(results, lease=False),
        "old_reads_without_lease": sum(figure.get("old_reads", 0) for figure in figures),
        "exit_codes": dict(sorted(ends.items())),
        "floor": {
            "p99_ms": max((figure["floor"]["p99_ms"] for figure in figures), default=0),
            "max_ms": max((figure["floor"]["max_ms"] for figure in figures), default=0),
        },
        "machine": {"cores": psutil.cpu_count(), "python": platform.python_version(), "system": platform.system()},
        "violations": sum(len(sentences) for result in results for sentences in result["violations"].values()),
        "violations_by_rule": dict(rules),
        "seeds_with_violations": [result["plan"]["seed"] for result in results if result["violations"]],
        "seeds_that_could_not_begin": [result["plan"]["seed"] for result in results if result.get("not_begun")],
    }


def as_text(summary: dict[str, Any]) -> str:
    """For people."""
    lines = [
        f"{summary['runs']} runs, {summary['minutes']} minutes, {summary['faults']} faults "
        f"({summary['with_lease']} runs with the lease option, {summary['with_three_nodes']} with three Kafka nodes, "
        f"{summary['with_partitions']} with several partitions, {summary['with_balancing']} with the balancer, "
        f"{summary['with_compaction']} with the cleaner at work: {summary['records_cleaned']:,} of {summary['records']:,} taken)",
        "faults: " + ", ".join(f"{kind} {count}" for kind, count in summary["faults_by_kind"].items()),
    ]
    for cause, figures in summary["gaps_ms_by_cause"].items():
        lines.append(f"gaps, {cause}: {_figures(figures)}")
    for kind, figures in summary["client_outages_ms_by_fault"].items():
        lines.append(f"clients without service, {kind}: {_figures(figures)}")
    lines += [
        f"registers: {summary['calls_answered']:,} calls answered, {summary['stored']:,} writes stored, "
        f"{summary['fenced_writes']:,} refused as of an older generation",
        "calls: " + ", ".join(f"{kind} {count:,}" for kind, count in summary["calls"].items()),
        f"intervals of service: {summary['services']:,}, overlapping pairs {summary['overlaps_with_lease']} with the lease "
        f"option, {summary['overlaps_without_lease']} without it; old reads from memory {summary['old_reads_without_lease']}",
        f"clients without service: {_figures(summary['client_outages_ms'])}",
        f"healthy after the last fault: {_figures(summary['healthy_after_ms'])}",
        f"all served beside a sick member: {_figures(summary['served_beside_a_sick_member_ms'])}",
        f"all served after that: {_figures(summary['served_after_health_ms'])}",
        f"floor (a thread that wakes every 10 ms): p99 {summary['floor']['p99_ms']} ms late, max {summary['floor']['max_ms']} ms",
        f"violations: {summary['violations']} {summary['violations_by_rule'] or ''}",
    ]
    if summary["seeds_with_violations"]:
        lines.append(f"seeds: {summary['seeds_with_violations']}")
    return "\n".join(lines)


def _overlaps(results: Sequence[dict[str, Any]], *, lease: bool) -> int:
    return sum(
        result["figures"].get("overlaps", 0) for result in results if (result["plan"]["lease_s"] is not None) is lease
    )


def _figures(figures: dict[str, Any]) -> str:
    if not figures["count"]:
        return "none"
    return f"{figures['count']}, p50 {figures['p50']} ms, p99 {figures['p99']} ms, max {figures['max']} ms"


def write(folder: Path, results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Write `report.json` and `report.txt` beside the evidence."""
    summary = summarise(results)
    (folder / "report.json").write_bytes(orjson.dumps(summary, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    (folder / "report.txt").write_text(as_text(summary) + "\n")
    return summary


def main(folders: Sequence[str]) -> int:
    """One report of several campaigns, on standard output."""
    lines = [line for folder in folders for line in (Path(folder) / "runs.jsonl").read_bytes().splitlines()]
    summary = summarise([orjson.loads(line) for line in lines])
    print(as_text(summary))
    print(orjson.dumps(summary, option=orjson.OPT_INDENT_2).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
