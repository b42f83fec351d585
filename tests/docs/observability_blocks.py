"""Generated parts of design/observability.md and of the alert rules: events, fields, metrics, alerts."""

import json
import re
from pathlib import Path
from typing import Any

import yaml

from statechannel.broker.observe.events import FIELDS, TABLE
from statechannel.broker.observe.metric_table import TABLE as METRICS
from statechannel.conditions.table import CONDITIONS

FILES = Path(__file__).parents[2] / "statechannel" / "observability"
ALERTS = FILES / "alerts.yaml"


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
        (f"`{one.full_name}`", one.kind.value, ", ".join(f"`{label}`" for label in one.labels) or "-", one.meaning)
        for one in METRICS
    ]
    return _table(("metric", "kind", "labels", "meaning"), body)


class _Names(dict[str, str]):
    """Words for the fields of a next step that an alert does not know."""

    def __missing__(self, name: str) -> str:
        return name.upper()


def alerts_file(text: str) -> str:
    """The file of rules, with consequence and next step of those that are conditions as the table has them."""
    mark = "      - alert: "
    return mark.join(_of_condition(rule) for rule in text.split(mark))


def _of_condition(rule: str) -> str:
    code = re.search(r"condition: ([a-z-]+)\}", rule)
    if code is None:
        return rule
    kind = next(kind for kind in CONDITIONS if kind.code == code[1])
    names = _Names(
        of_hook="", effect="What follows depends on the hook.", todo="`statechannel doctor` says what to do."
    )
    if "$labels.broker" in rule:
        names["broker"] = "{{ $labels.broker }}"
    words = {"consequence": kind.consequence, "action": kind.next_step}
    lines = [f"          {name}: {json.dumps(text.format_map(names))}\n" for name, text in words.items()]
    return re.sub(r" {10}consequence: .*\n {10}action: .*\n", lambda _: "".join(lines), rule)


def alert_rules() -> list[dict[str, Any]]:
    """The rules of the file, one after the other."""
    found = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))
    return [rule for group in found["groups"] for rule in group["rules"]]


def alerts() -> str:
    """A section for each alert."""
    parts = []
    for rule in alert_rules():
        notes, wait = rule["annotations"], rule.get("for", "0s")
        code = rule["labels"].get("condition")
        of = f" Condition [`{code}`](cli.md#verdict)." if code else ""
        said = " ".join(notes[name] for name in ("summary", "consequence") if name in notes)
        head = (
            f"### {rule['alert']}\n\n{rule['labels']['severity'].capitalize()}, after {wait}.{of} {_labels(said)}\n\n"
        )
        parts.append(f"{head}```promql\n{rule['expr']}\n```\n\nWhat to do: {_labels(notes['action'])}")
    return "\n\n".join(parts)


def _labels(text: str) -> str:
    return re.sub(r"\{\{ \$labels\.(\w+) \}\}", r"`\1`", text)
