"""HTML page of `statechannel audit report`: templates and rendering."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata, resources
from typing import Any

import jinja2

from statechannel.audit.history import short_range
from statechannel.audit.report.charts import OTHERS
from statechannel.audit.report.data import complete_from
from statechannel.cli.kit.output import duration, moment

_SCRIPTS = ("drawing.js", "area.js", "lanes.js", "choosing.js", "main.js")
_NOTHING_ELSE = "base-uri 'none'; form-action 'none'"
_SHOWN_BY_SCRIPT = ("area", "lanes")


@dataclass(frozen=True, slots=True)
class ReportOrigin:
    """Origin of a report.

    Attributes:
        source: Source of the log, as text.
        as_of: Moment of the audit, as text; None: the end of the log.
        made_ms: Wall clock, milliseconds since 1970.
        wanted: Requested bundles, namespaces and topics.
    """

    source: str
    as_of: str | None
    made_ms: int
    wanted: tuple[str, ...] = ()


def render(report: Mapping[str, Any], origin: ReportOrigin) -> str:
    """The page: one self-contained document, whose policy forbids loading anything else."""
    script = "\n".join(_file(name) for name in _SCRIPTS)
    style = _file("style.css")
    policy = f"default-src 'none'; img-src data:; script-src {_hash(script)}; style-src {_hash(style)}; {_NOTHING_ELSE}"
    partitions = report["partitions"]
    complete_ms = complete_from(partitions)
    rows = report["gaps"]["rows"]
    # Tables are in the page already; the script gets what it draws.
    data = {name: report[name] for name in _SHOWN_BY_SCRIPT} | {
        "gaps": {"times": report["gaps"]["times"]},
        "rejected": {"times": report["rejected"]["times"]},
        "complete_ms": complete_ms,
        "others": OTHERS,
        "gap_spans": _gap_spans(report),
    }
    return (
        _environment()
        .get_template("page.html")
        .render(
            report=report,
            answer=report["answer"],
            verdicts=report["verdicts"],
            data=data,
            script=script,
            style=style,
            policy=policy,
            source=origin.source,
            as_of=origin.as_of,
            made_ms=origin.made_ms,
            how_chosen="of the requested ones" if origin.wanted else "those with the longest gaps and the most records",
            version=metadata.version("statechannel"),
            others=OTHERS,
            tentative=any(partition["tentative"] for partition in partitions),
            incomplete=any(partition["gapped"] for partition in partitions),
            complete_ms=complete_ms,
            longest_ms=max((row["length_ms"] for row in rows if row["length_ms"] is not None), default=None),
            with_lane={lane["name"] for lane in report["lanes"]},
            lanes_left=len(report["lanes"]) < report["keys_all"],
        )
    )


def _gap_spans(report: Mapping[str, Any]) -> dict[str, list[tuple[int, int, str]]]:
    """Gaps of each bundle with a timeline, as far as they are in the table."""
    spans: dict[str, list[tuple[int, int, str]]] = {lane["name"]: [] for lane in report["lanes"]}
    last_ms = report["area"]["last_ms"]
    for gap in report["gaps"]["rows"]:
        if gap["bundle"] in spans:
            spans[gap["bundle"]].append(
                (gap["start_ms"], last_ms if gap["end_ms"] is None else gap["end_ms"], gap["cause"])
            )
    return {name: drawn for name, drawn in spans.items() if drawn}


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        autoescape=True,
        loader=jinja2.FunctionLoader(_file),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"moment": moment, "duration": duration, "range": short_range}
    return environment


def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
