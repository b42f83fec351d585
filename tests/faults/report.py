"""What a campaign found: runs, faults by kind, gaps by cause, violations with the seeds that replay them.

`python -m tests.faults.report FOLDER...` adds up several.
"""

from __future__ import annotations

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
    figures = [one["figures"] for one in results if one["figures"].get("faults")]
    for one in figures:
        faults.update(one["faults"])
        operations.update(one["operations"])
        calls.update(one.get("calls", {}))
        ends.update(one["ends"])
        for cause, length_ms in one["gaps_ms"]:
            gaps[cause].append(length_ms)
        for kind, length_ms in one.get("outages_by_fault_ms", ()):
            outages[kind].append(length_ms)
    rules = Counter(rule for one in results for rule in one["violations"])
    return {
        "runs": len(results),
        "minutes": round(sum(one["seconds"] for one in results) / 60, 1),
        "with_lease": sum(one["plan"]["lease_s"] is not None for one in results),
        "with_three_nodes": sum(one["plan"]["nodes"] > 1 for one in results),
        "with_partitions": sum(one["plan"].get("partitions", 1) > 1 for one in results),
        "with_balancing": sum(one["plan"].get("balancing", False) for one in results),
        "with_compaction": sum(one["plan"]["compacting"] for one in results),
        "records": sum(one["records"] for one in figures),
        "records_cleaned": sum(one["records_cleaned"] for one in figures),
        "faults": sum(faults.values()),
        "faults_by_kind": dict(sorted(faults.items())),
        "gaps_ms_by_cause": {cause: percentiles(lengths) for cause, lengths in sorted(gaps.items())},
        "client_outages_ms": percentiles(length for one in figures for length in one["outages_ms"]),
        "client_outages_ms_by_fault": {kind: percentiles(lengths) for kind, lengths in sorted(outages.items())},
        "healthy_after_ms": percentiles((s for one in figures for s in one["healthy_s"]), 1_000),
        "served_beside_a_sick_member_ms": percentiles((s for one in figures for s in one.get("beside_s", ())), 1_000),
        "served_after_health_ms": percentiles((s for one in figures for s in one["served_s"]), 1_000),
        "stale_lookup_max_ms": max((one["stale_lookups_ms"]["max"] for one in figures), default=0),
        "stale_writes_without_lease": sum(one["stale_writes"] for one in figures),
        "writes": sum(one["writes"] for one in figures),
        "lookups": sum(one["lookups"] for one in figures),
        "operations": dict(sorted(operations.items())),
        "moves_by_brokers": sum(one.get("moves_by_brokers", 0) for one in figures),
        "calls": dict(sorted(calls.items())),
        "calls_answered": sum(count for kind, count in calls.items() if not kind.endswith(("not-served", "unknown"))),
        "stored": sum(one.get("stored", 0) for one in figures),
        "fenced_writes": sum(one.get("fenced_writes", 0) for one in figures),
        "fenced_opens": sum(one.get("fenced_opens", 0) for one in figures),
        "services": sum(one.get("services", 0) for one in figures),
        "overlaps_with_lease": _overlaps(results, lease=True),
        "overlaps_without_lease": _overlaps(results, lease=False),
        "old_reads_without_lease": sum(one.get("old_reads", 0) for one in figures),
        "exit_codes": dict(sorted(ends.items())),
        "floor": {
            "p99_ms": max((one["floor"]["p99_ms"] for one in figures), default=0),
            "max_ms": max((one["floor"]["max_ms"] for one in figures), default=0),
        },
        "machine": {"cores": psutil.cpu_count(), "python": platform.python_version(), "system": platform.system()},
        "violations": sum(len(found) for one in results for found in one["violations"].values()),
        "violations_by_rule": dict(rules),
        "seeds_with_violations": [one["plan"]["seed"] for one in results if one["violations"]],
        "seeds_that_could_not_begin": [one["plan"]["seed"] for one in results if one.get("not_begun")],
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
    for cause, found in summary["gaps_ms_by_cause"].items():
        lines.append(f"gaps, {cause}: {_figures(found)}")
    for kind, found in summary["client_outages_ms_by_fault"].items():
        lines.append(f"clients without service, {kind}: {_figures(found)}")
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
    return sum(one["figures"].get("overlaps", 0) for one in results if (one["plan"]["lease_s"] is not None) is lease)


def _figures(found: dict[str, Any]) -> str:
    if not found["count"]:
        return "none"
    return f"{found['count']}, p50 {found['p50']} ms, p99 {found['p99']} ms, max {found['max']} ms"


def write(folder: Path, results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Write `report.json` and `report.txt` beside the evidence."""
    found = summarise(results)
    (folder / "report.json").write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    (folder / "report.txt").write_text(as_text(found) + "\n")
    return found


def main(folders: Sequence[str]) -> int:
    """One report of several campaigns, on standard output."""
    lines = [line for folder in folders for line in (Path(folder) / "runs.jsonl").read_bytes().splitlines()]
    found = summarise([orjson.loads(line) for line in lines])
    print(as_text(found))
    print(orjson.dumps(found, option=orjson.OPT_INDENT_2).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
