"""HTML page of `statechannel audit report`: templates and rendering."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata, resources
from typing import Any

import jinja2
import markupsafe

from statechannel.audit.overlaps import CAVEAT as OVERLAP_CAVEAT
from statechannel.audit.report.data import complete_from
from statechannel.audit.report.incident_list import forged_sentences
from statechannel.audit.report.ownership import OTHERS, shared_file
from statechannel.clocks import duration, moment
from statechannel.stories.bundle import short_range
from statechannel.stories.incident import IncidentKind
from statechannel.stories.requests import PERSONS_CLAIM

_SCRIPTS = ("drawing.js", "area.js", "lanes.js", "choosing.js", "heat.js", "main.js")
_NOTHING_ELSE = "base-uri 'none'; form-action 'none'"
_SHOWN_BY_SCRIPT = ("area", "lanes", "heat", "incidents")
_CROSS, _DOT = "M-4-4L4 4M4-4L-4 4", "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0Z"
_SQUARE = "M-4-4H4V4H-4Z"
SIGNS: Mapping[str, tuple[str, str, str]] = {
    IncidentKind.OWNER_LOST: ("bad", _CROSS, "broker lost, bundles repaired"),
    IncidentKind.LOST: ("bad", _CROSS, "broker lost, or heard again"),
    IncidentKind.SILENCE: ("warn solid", "M-6-2H6V2H-6Z", "outage: no heartbeats"),
    IncidentKind.STANDSTILL: ("warn", "M-5-5L5 5V-5L-5 5Z", "a broker stood still"),
    IncidentKind.NAMESPACE_DELETED: ("accent", _SQUARE, "namespace deleted"),
    IncidentKind.GAP: ("bad solid", "M-1.5-5H1.5V5H-1.5Z", "long gap in service"),
    IncidentKind.DECLINED: ("warn", _CROSS, "bundles declined"),
    IncidentKind.FORGED: (
        "forged",
        "M-5-5H5V5H-5ZM-5-5L5 5M5-5L-5 5",
        "records that name a broker that did not write them",
    ),
    IncidentKind.LEADER: ("accent solid", "M0-5L5 4H-5Z", "change of leader"),
    IncidentKind.STARTED: ("good solid", _DOT, "broker started"),
    IncidentKind.LEFT: ("soft", _DOT, "broker left"),
    IncidentKind.DRAIN: ("soft", _SQUARE, "drain"),
    IncidentKind.COLD_START: ("bad solid", "M0-6L5 0L0 6L-5 0Z", "cold start"),
    IncidentKind.MODE: ("warn", _SQUARE, "change of mode"),
    IncidentKind.DISMISSED: ("soft", _CROSS, "lost broker dismissed"),
    IncidentKind.POLICY: ("accent", _DOT, "policy set or deleted"),
    IncidentKind.REPAIR_PAUSED: ("warn", "M-3-5V5M3-5V5", "repair paused, or resumed"),
}
"""By kind of incident: classes and path of its sign, and its meaning."""


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
    script = "\n".join((shared_file("heat_chart.js"), *map(_file, _SCRIPTS)))
    style = shared_file("shared.css") + _file("style.css")
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
        "signs": {kind.value: SIGNS[kind] for kind in IncidentKind},
        "gap_spans": _gap_spans(report),
        "overlap_spans": _overlap_spans(report),
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
            requested=bool(origin.wanted),
            forged_sentences=len(forged_sentences(report)),
            persons_claim=PERSONS_CLAIM,
            overlap_caveat=OVERLAP_CAVEAT,
            version=metadata.version("statechannel"),
            others=OTHERS,
            tentative=any(partition["tentative"] for partition in partitions),
            incomplete=any(partition["gapped"] for partition in partitions),
            complete_ms=complete_ms,
            signs={kind.value: SIGNS[kind] for kind in IncidentKind},
            gap_rows=sorted(rows, key=_longest_first),
            heat_left=report["heat"]["chosen"] == report["limits"]["heat_rows"],
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


def _overlap_spans(report: Mapping[str, Any]) -> dict[str, list[tuple[int, int, str]]]:
    """Times of each bundle with a timeline in which a lost owner may have served it, too."""
    names = {lane["name"] for lane in report["lanes"]}
    spans: dict[str, list[tuple[int, int, str]]] = {}
    for row in report["overlaps"]["rows"]:
        if row["bundle"] in names:
            spans.setdefault(row["bundle"], []).append((row["since_ms"], row["until_ms"], row["from"]))
    return spans


def _longest_first(gap: Mapping[str, Any]) -> tuple[bool, int, int]:
    """Open ones before all others."""
    length_ms = gap["length_ms"]
    return length_ms is not None, -(length_ms or 0), gap["start_ms"]


def _colour(broker: Mapping[str, Any]) -> str:
    """Class of a broker's colour."""
    return "others" if broker["colour"] is None else f"o{broker['colour']}"


def _key(name: str) -> markupsafe.Markup:
    parts = [markupsafe.escape(part) for part in name.split("/")]
    return markupsafe.Markup("/<wbr>").join(parts)


def _words(code: str) -> str:
    return code.replace("-", " ")


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        autoescape=True,
        loader=jinja2.FunctionLoader(_file),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"moment": moment, "duration": duration, "range": short_range} | {
        "colour": _colour,
        "key": _key,
        "words": _words,
    }
    return environment


def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
