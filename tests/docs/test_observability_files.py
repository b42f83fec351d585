"""Dashboard and alert rules: they parse, they ask for metrics that exist, and somebody who is woken knows what to do."""

import json
import re
from itertools import combinations

import promql_parser as promql
import pytest
import yaml

from statechannel.broker.observe.metric_table import TABLE, MetricKind
from tests.docs.generate import ROOT
from tests.docs.observability_blocks import FILES, alert_rules

DASHBOARD = json.loads((FILES / "dashboard.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
TARGETS = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
RULES = alert_rules()
KINDS = {"row", "stat", "timeseries", "state-timeline", "table"}
OF_THE_LIBRARY = {"process_resident_memory_bytes": set()}
COMMON = {"channel", "broker"}


def series() -> dict[str, set[str]]:
    """Names that a scraper finds, with their labels."""
    found = dict(OF_THE_LIBRARY)
    for metric in TABLE:
        labels = COMMON | set(metric.labels)
        if metric.kind is MetricKind.HISTOGRAM:
            found |= {f"{metric.full_name}_{end}": labels for end in ("sum", "count")}
            found[f"{metric.full_name}_bucket"] = labels | {"le"}
        else:
            found[metric.full_name] = labels
    return found


SERIES = series()


def plain(expr: str) -> str:
    """As Prometheus gets it: Grafana's variables filled in."""
    filled = expr.replace("$__rate_interval", "5m").replace("$channel", "c").replace("$broker", "b1|b2")
    assert "$" not in filled, expr
    return filled


class Selectors:
    """Every selector of an expression."""

    def __init__(self, expr: str) -> None:
        self.found: list[promql.VectorSelector] = []
        self._walk(promql.parse(expr))

    def _walk(self, node) -> None:
        if isinstance(node, promql.VectorSelector):
            self.found.append(node)
        for name in ("expr", "lhs", "rhs", "param", "vector_selector"):
            below = getattr(node, name, None)
            if below is not None and not isinstance(below, str | float | int):
                self._walk(below)
        args = getattr(node, "args", None) or ()
        for below in args:
            self._walk(below)


def check(expr: str) -> int:
    selectors = Selectors(expr).found
    for one in selectors:
        assert one.name in SERIES, f"{one.name} in {expr}"
        labels = {matcher.name for matcher in one.matchers.matchers}
        assert labels <= SERIES[one.name], f"{one.name}: {labels - SERIES[one.name]}"
    return len(selectors)


@pytest.mark.parametrize(("title", "expr"), TARGETS, ids=[f"{title}-{n}" for n, (title, _) in enumerate(TARGETS)])
def test_a_panel_asks_for_what_there_is(title, expr):
    text = plain(expr)
    assert check(text) == len(re.findall(r"statechannel_\w+|process_\w+", text))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_asks_for_what_there_is_and_says_what_to_do(rule):
    assert check(rule["expr"]) == len(re.findall(r"statechannel_\w+", rule["expr"])) > 0
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert set(rule["annotations"]) == {"summary", "action", "runbook"}
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert len(rule["annotations"]["action"]) > 30
    known = label_names(rule["expr"])
    for label in re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]):
        assert label in known, label
    file, _, anchor = rule["annotations"]["runbook"].partition("#")
    headings = re.findall(r"^#+ (.+)$", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
    assert anchor in {heading.lower().replace(" ", "-") for heading in headings}


def label_names(expr: str) -> set[str]:
    """Labels that an alert has: those that it is summed up by, else those of its first series."""
    grouped = re.findall(r"by \(([^)]*)\)", expr)
    if grouped:
        return {name.strip() for name in grouped[0].split(",")}
    return SERIES[Selectors(expr).found[0].name]


def test_a_metric_that_does_not_exist_is_found():
    with pytest.raises(AssertionError, match="statechannel_nonsense"):
        check('sum(rate(statechannel_nonsense{channel="c"}[5m]))')
    with pytest.raises(AssertionError, match="bundle"):
        check('statechannel_mode{bundle="t/n/0x0_0x1"}')
    with pytest.raises(ValueError, match="parenthesis"):
        check("sum by (le rate(x[5m])")


def test_rules_are_named_once_and_loaded_as_prometheus_loads_them():
    found = yaml.safe_load((FILES / "alerts.yaml").read_text(encoding="utf-8"))
    assert set(found) == {"groups"}
    assert all(set(group) == {"name", "rules"} for group in found["groups"])
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names) > 10
    assert all(re.fullmatch(r"\d+[sm]", rule.get("for", "0s")) for rule in RULES)


def test_dashboard_is_what_grafana_takes():
    assert DASHBOARD["schemaVersion"] >= 36
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,40}", DASHBOARD["uid"])
    panels = DASHBOARD["panels"]
    assert {panel["type"] for panel in panels} <= KINDS
    assert len({panel["id"] for panel in panels}) == len(panels)
    variables = {one["name"] for one in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]\w*)", json.dumps(DASHBOARD))) - {"labels"}
    assert used <= variables, used - variables
    for panel in PANELS:
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs) > 0
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["fieldConfig"]["defaults"]["unit"]


def test_panels_lie_beside_each_other():
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    assert all(place["x"] + place["w"] <= 24 and place["w"] > 0 and place["h"] > 0 for place in places)
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below, (one, other)


def test_every_metric_of_the_table_can_be_looked_at():
    """What no panel and no alert shows is a metric that nobody will ever find."""
    texts = " ".join([json.dumps(DASHBOARD), *(rule["expr"] for rule in RULES)])
    assert {metric.full_name for metric in TABLE if metric.full_name not in texts} == set()
