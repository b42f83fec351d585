"""The tables of design/evidence/partitions-quality.md, from the figures that were kept, and that of design/partitions.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from loaddata.samples.prometheus_source import Figure, NameRule, SeriesKind, rules_of
from tests.support.partition_figures import kept

SHOWN = ("replicas", "leaders", "disk", "bytes-in")
_MODES = {"rebalance": "rebalance", "add-brokers": "new brokers", "remove-brokers": "brokers that go"}


def generate() -> str:
    """Our plans beside those of Kafka's tool."""
    head = ["cluster", "for", "", "copied", "of all", "partitions moved", "shared racks", *SHOWN]
    return _table(head, (_side(row) for row in kept()["generate"]))


def _side(row: Mapping[str, Any]) -> list[str]:
    first = row["who"] == "before"
    moved = "" if first else f"{row['partitions_moved']:,.0f} of {row['partitions']:,.0f}"
    spread = [f"{row[goal]['max']:.2f} / {row[goal]['std']:.2f}" for goal in SHOWN]
    return [
        *((row["cluster"], _MODES[row["mode"]]) if first else ("", "")),
        {"before": "before", "--generate": "`--generate`", "ours": "ours"}[row["who"]],
        *(("", "") if first else (_size(row["copied_bytes"]), f"{100 * row['copied_share']:.1f} %")),
        moved,
        f"{row['racks_broken']:,.0f}",
        *spread,
    ]


def uneven() -> str:
    """Plans of clusters with racks of different size, beside integer programs."""
    figures = kept()["uneven"]
    fullest, copied = figures["fullest disk beyond the best"], figures["bytes / least bytes"]
    rows = [
        ["fullest disk beyond the best", *(f"{100 * fullest[name]:.1f} %" for name in ("median", "p95", "worst"))],
        ["bytes / least bytes", *(f"{copied[name]:.3f}" for name in ("median", "p95", "worst"))],
    ]
    shares = (
        f"{figures['clusters']:,} clusters from seed {figures['seed']}: {100 * fullest['within 2 %']:.0f} % within 2 % of the "
        f"best, {100 * copied['within 1.05']:.0f} % within 1.05 of the least bytes, which all together are copied "
        f"{figures['all bytes / all least bytes']:.3f} times."
    )
    return f"{shares}\n\n{_table(['', 'median', '95 % below', 'worst'], rows)}"


def check() -> str:
    """What was found on random clusters."""
    figures = kept()["check"]
    head = ["", *figures["modes"]]
    rows = [
        ("plans", "plans"),
        ("something wrong", "wrong"),
        ("plans without a move", "empty"),
        ("partitions moved", "partitions moved"),
    ]
    rows += [
        ("within 1.05 of the bound", "within"),
        ("bytes / bound, median", "ratio p50"),
        ("95 % below", "ratio p95"),
    ]
    rows += [("worst", "ratio max"), ("all bytes / all bounds", "ratio of all bytes")]
    rows += [("a soft goal not reached", "with an unmet soft goal"), ("a hard one", "with an infeasible hard goal")]
    rows += [("refused", "refused"), ("CPU time, median", "p50_ms"), ("longest", "max_ms")]
    body = ([title, *(_cell(name, mode.get(name)) for mode in figures["modes"].values())] for title, name in rows)
    return f"{figures['clusters']:,} clusters from seed {figures['seed']}.\n\n{_table(head, body)}"


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return ""
    if name == "within":
        return f"{100 * value:.2f} %"
    if name.startswith("ratio"):
        return f"{value:.3f}"
    return f"{value:,.0f} ms" if name.endswith("_ms") else f"{value:,.0f}"


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def _table(head: Iterable[str], body: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(line) + " |" for line in body)])


def metric_names() -> str:
    """What the JMX exporter's configurations call Kafka's metrics: each figure with its names, in order."""
    lines = ["| figure | series, the first that there is; upper and lower case alike |", "| --- | --- |"]
    lines += [f"| {figure} | {', '.join(_shown(rule) for rule in rules_of(figure))} |" for figure in Figure]
    return "\n".join(lines)


def _shown(rule: NameRule) -> str:
    series = f'`{rule.name}{{name="{rule.mbean}"}}`' if rule.mbean else f"`{rule.name}`"
    marks = [*(["growth"] if rule.kind is SeriesKind.TOTAL else []), *(["per processor"] if rule.per_processor else [])]
    return f"{series} ({', '.join(marks)})" if marks else series
