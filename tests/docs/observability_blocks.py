"""Generated parts of design/observability.md: events, fields, metrics, alerts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from statechannel.broker.observe.events import FIELDS, TABLE
from statechannel.broker.observe.metric_table import TABLE as METRICS

FILES = Path(__file__).parents[2] / "statechannel" / "observability"


def _table(head: tuple[str, ...], body: list[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in body)])


def events() -> str:
    """Every event, in the order of the table."""
    body = []
    for event in TABLE:
        level = event.level.name.lower()
        if event.otherwise is not None:
            level += f"; {event.otherwise.level.name.lower()} where {event.otherwise.when}"
        fields = ", ".join(f"`{field}`" for field in event.fields) or "-"
        body.append((f"`{event.name}`", level, event.meaning, fields))
    return _table(("event", "level", "meaning", "fields"), body)


def event_fields() -> str:
    """Every field, by name."""
    return _table(("field", "meaning"), [(f"`{name}`", FIELDS[name]) for name in sorted(FIELDS)])


def metrics() -> str:
    """Every metric, in the order of the table."""
    body = [
        (
            f"`{one.full_name}`",
            one.kind.value,
            ", ".join(f"`{label}`" for label in one.labels) or "-",
            one.meaning,
        )
        for one in METRICS
    ]
    return _table(("metric", "kind", "labels", "meaning"), body)


def alert_rules() -> list[dict[str, Any]]:
    """The rules of the file, one after the other."""
    found = yaml.safe_load((FILES / "alerts.yaml").read_text(encoding="utf-8"))
    return [rule for group in found["groups"] for rule in group["rules"]]


def alerts() -> str:
    """A section for each alert."""
    parts = []
    for rule in alert_rules():
        notes, wait = rule["annotations"], rule.get("for", "0s")
        summary = notes["summary"].replace("{{ $labels.", "<").replace(" }}", ">").replace("<", "`").replace(">", "`")
        head = f"### {rule['alert']}\n\n{rule['labels']['severity'].capitalize()}, after {wait}. {summary}\n\n"
        parts.append(f"{head}```promql\n{rule['expr']}\n```\n\nWhat to do: {notes['action']}")
    return "\n\n".join(parts)
