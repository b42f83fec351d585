"""The table of design/partitions.md: what the JMX exporter's configurations call Kafka's metrics."""

from __future__ import annotations

from loaddata.samples.prometheus_source import Figure, NameRule, SeriesKind, rules_of


def names() -> str:
    """Each figure with the names that it is found by, in order."""
    lines = ["| figure | series, the first that there is; upper and lower case alike |", "| --- | --- |"]
    lines += [f"| {figure} | {', '.join(_shown(rule) for rule in rules_of(figure))} |" for figure in Figure]
    return "\n".join(lines)


def _shown(rule: NameRule) -> str:
    series = f'`{rule.name}{{name="{rule.mbean}"}}`' if rule.mbean else f"`{rule.name}`"
    marks = [*(["growth"] if rule.kind is SeriesKind.TOTAL else []), *(["per processor"] if rule.per_processor else [])]
    return f"{series} ({', '.join(marks)})" if marks else series
