"""Dashboard and alert rules: they parse, they ask for metrics that exist, and somebody who is woken knows what to do."""

import json
import re
from itertools import combinations

import promql_parser as promql
import pytest
import yaml

from shedders.balancer.metrics import BalancerMetrics
from statechannel.broker.observe.metric_table import TABLE, MetricKind
from tests.docs.generate import ROOT
from tests.docs.observability_blocks import ALERTS, FILES, alert_rules, alerts_file
from tests.support.promql import Labels, Points, Promql

DASHBOARD = json.loads((FILES / "dashboard.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
TARGETS = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
RULES = alert_rules()
KINDS = {"row", "stat", "timeseries", "state-timeline", "table"}
SCRAPED = {"job", "instance"}
OF_THE_LIBRARY = {"process_resident_memory_bytes": SCRAPED}
COMMON = {"channel", "broker"} | SCRAPED


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
    return found | of_the_balancer()


def of_the_balancer() -> dict[str, set[str]]:
    """Metrics of the extension that balances."""
    found = {}
    for family in BalancerMetrics("c", "b1").registry.collect():
        metric = BALANCER_FAMILIES[family.name]
        labels = set(metric._labelnames) | SCRAPED
        if family.type == "histogram":
            found |= {f"{family.name}_{end}": labels for end in ("sum", "count")}
            found[f"{family.name}_bucket"] = labels | {"le"}
        else:
            found[family.name + ("_total" if family.type == "counter" else "")] = labels
    return found


BALANCER_FAMILIES = {
    family.name: BalancerMetrics("c", "b1").registry._names_to_collectors[family.name]
    for family in BalancerMetrics("c", "b1").registry.collect()
}
SERIES = series()


def plain(expr: str) -> str:
    """As Prometheus gets it: Grafana's variables filled in."""
    filled = (
        expr.replace("$__rate_interval", "5m").replace("$channel", "c").replace("$job", "j").replace("$broker", "b1|b2")
    )
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


@pytest.mark.parametrize(("title", "expr"), TARGETS, ids=[f"{title}-{n}" for n, (title, _) in enumerate(TARGETS)])
def test_a_panel_is_of_the_chosen_job_and_channel(title, expr):
    for selector in Selectors(plain(expr)).found:
        wanted = {"job": "j"} if selector.name in OF_THE_LIBRARY else {"job": "j", "channel": "c"}
        assert wanted.items() <= {one.name: one.value for one in selector.matchers.matchers}.items(), selector


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_asks_for_what_there_is_and_says_what_to_do(rule):
    assert check(rule["expr"]) == len(re.findall(r"statechannel_\w+", rule["expr"])) > 0
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    consequence = {"consequence"} if "condition" in rule["labels"] else set()
    assert set(rule["annotations"]) == {"summary", "action", "runbook", "runbook_url"} | consequence
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert len(rule["annotations"]["action"]) > 30
    known = label_names(rule["expr"])
    for label in re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]):
        assert label in known, label
    file, _, anchor = rule["annotations"]["runbook"].partition("#")
    assert rule["annotations"]["runbook_url"] == f"{{{{ $externalLabels.runbooks }}}}#{anchor}"
    headings = re.findall(r"^#+ (.+)$", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
    assert anchor in {heading.lower().replace(" ", "-") for heading in headings}


def test_alerts_of_conditions_say_what_the_table_says():
    text = ALERTS.read_text(encoding="utf-8")
    assert text == alerts_file(text), "run `make docs`"
    page = (ROOT / "design" / "cli.md").read_text(encoding="utf-8")
    named = {
        (row[1], name)
        for row in re.finditer(r"\n\| `([a-z-]+)` .*", page)
        for name in re.findall(r"`(Statechannel\w+)`", row[0])
    }
    assert named == {(rule["labels"]["condition"], rule["alert"]) for rule in RULES if "condition" in rule["labels"]}


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
    found = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))
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
    names = {metric.full_name for metric in TABLE} | set(BALANCER_FAMILIES)
    assert {name for name in names if name not in texts} == set()


def test_figures_change_their_colour_when_they_need_attention():
    stats = [panel for panel in PANELS if panel["type"] == "stat"]
    assert len(stats) > 5
    for panel in stats:
        defaults = panel["fieldConfig"]["defaults"]
        colours = [step["color"] for step in defaults["thresholds"]["steps"]]
        assert "green" in colours, panel["title"]
        assert {"red", "orange"} & set(colours), panel["title"]
        assert defaults["thresholds"]["steps"][0]["value"] is None
        assert defaults["noValue"], panel["title"]


NOW_S, STEP_S, SPAN_S = 1_000_000.0, 15, 4_500
BROKERS = ("b1", "b2", "b3")


def well(name: str, labels: dict[str, str], at_s: float) -> float:
    """Of a cluster that is well."""
    figures = {
        "statechannel_caught_up": 1,
        "statechannel_kafka_available": 1,
        "statechannel_is_leader": labels.get("broker") == "b1",
        "statechannel_members": 3,
        "statechannel_mode": labels.get("mode") == "normal",
        "statechannel_loop_last_progress_timestamp_seconds": at_s,
        "statechannel_balancer_score_max_over_mean": 1.1,
        "statechannel_lookups_total": at_s * (labels.get("answer") == "owner"),
    }
    return float(figures.get(name, 0))


class Cluster:
    """Series of three brokers for an hour and a quarter.

    Args:
        wrong: By metric: the value at a time; None: it was not scraped; by `well` where it says `...`.
    """

    def __init__(self, **wrong) -> None:
        self._wrong = {f"statechannel_{name}": figure for name, figure in wrong.items()}
        series: dict[tuple[str, Labels], Points] = {}
        for name, known in SERIES.items():
            for labels in self._labels(known):
                times = [NOW_S - SPAN_S + STEP_S * step for step in range(SPAN_S // STEP_S + 1)]
                points = [(at_s, value) for at_s in times if (value := self._value(name, labels, at_s)) is not None]
                if points:
                    series[name, frozenset(labels.items())] = points
        self.promql = Promql(series)

    def _value(self, name: str, labels: dict[str, str], at_s: float) -> float | None:
        figure = self._wrong.get("statechannel_all") or self._wrong.get(name)
        value = ... if figure is None else figure(labels, NOW_S - at_s)
        return well(name, labels, at_s) if value is ... else value

    @staticmethod
    def _labels(known: set[str]) -> list[dict[str, str]]:
        words = {
            "mode": ("normal", "safe"),
            "what": ("alive", "accepting"),
            "answer": ("owner", "undetermined"),
            "verdict": ("accepted", "undecodable"),
            "event": ("replica.stopped",),
            "outcome": ("Success", "Failure"),
            "le": ("0.05", "5", "60", "+Inf"),
            "harm": ("hard", "soft"),
        }
        rows = [{"job": "j", "channel": "c", "broker": broker, "instance": f"{broker}:80"} for broker in BROKERS]
        for name in sorted(known - COMMON):
            rows = [row | {name: word} for row in rows for word in words.get(name, ("one",))]
        return [{name: value for name, value in row.items() if name in known} for row in rows]

    def firing(self) -> set[str]:
        """Alerts whose expression has held for as long as they wait."""
        return {rule["alert"] for rule in RULES if all(self.promql.ask(rule["expr"], at_s) for at_s in _moments(rule))}


def _moments(rule) -> list[float]:
    number, unit = re.fullmatch(r"(\d+)([sm])", rule.get("for", "0s")).groups()
    wait_s = int(number) * {"s": 1, "m": 60}[unit]
    return [NOW_S - wait_s * part / 4 for part in range(5)]


def slow(labels, ago_s):
    """Buckets of a histogram in which all new values are between 5 and 60."""
    return 10_000 - ago_s if labels["le"] in {"60", "+Inf"} else 0


def growing(**of):
    """A counter that rises by one each second, where its labels are these."""
    return lambda labels, ago_s: 10_000 - ago_s if of.items() <= labels.items() else 0


TROUBLE = {
    "StatechannelNoLeader": {"is_leader": lambda labels, ago_s: 0},
    "StatechannelTwoLeaders": {"is_leader": lambda labels, ago_s: labels["broker"] != "b3"},
    "StatechannelBrokerLost": {"members": lambda labels, ago_s: 2 if ago_s < 60 else 3},
    "StatechannelRecordForged": {"forged_records": lambda labels, ago_s: labels["broker"] == "b2"},
    "StatechannelRepairPaused": {"repair_paused": lambda labels, ago_s: labels["broker"] == "b1"},
    "StatechannelNotNormal": {"mode": lambda labels, ago_s: labels["mode"] == "safe"},
    "StatechannelNotCaughtUp": {"caught_up": lambda labels, ago_s: 0},
    "StatechannelMoveStuck": {"oldest_in_flight_seconds": lambda labels, ago_s: 200 - ago_s},
    "StatechannelLongGaps": {"gap_seconds_bucket": slow},
    "StatechannelHooksFail": {"hook_failures_total": growing(broker="b3")},
    "StatechannelLookupsUndetermined": {"lookups_total": growing(answer="undetermined")},
    "StatechannelKafkaAway": {"kafka_available": lambda labels, ago_s: labels["broker"] != "b2"},
    "StatechannelHeadLost": {"heads_lost": lambda labels, ago_s: labels["broker"] == "b2"},
    "StatechannelReplicasDiffer": {"replicas_differ": lambda labels, ago_s: labels["broker"] == "b2"},
    "StatechannelTopicUnfit": {"topic_differences": lambda labels, ago_s: labels["harm"] == "hard"},
    "StatechannelOldDebt": {"oldest_debt_seconds": lambda labels, ago_s: 300 - ago_s},
    "StatechannelJunk": {"records_total": lambda labels, ago_s: growing(verdict="undecodable")(labels, ago_s) * 2},
    "StatechannelNewerFormat": {"events_total": lambda labels, ago_s: ago_s < 600},
    "StatechannelAppendsFail": {"append_failures_total": growing(broker="b1")},
    "StatechannelThrottled": {"kafka_throttle_seconds_total": growing(broker="b1")},
    "StatechannelLoopStuck": {"loop_stuck": lambda labels, ago_s: labels["broker"] == "b1"},
    "StatechannelLoopSlow": {"loop_lag_seconds_bucket": slow},
    "StatechannelPartRestarted": {"part_restarts_total": lambda labels, ago_s: ago_s < 300},
    "StatechannelUnbalanced": {"balancer_score_max_over_mean": lambda labels, ago_s: 2.5},
    "StatechannelDecisionsFail": {"balancer_cycles_total": growing(outcome="Failure")},
}


def test_no_alert_fires_while_all_is_well():
    assert Cluster().firing() == set()


@pytest.mark.parametrize("alert", [rule["alert"] for rule in RULES])
def test_an_alert_fires_at_its_trouble_and_no_other_does(alert):
    assert Cluster(**TROUBLE[alert]).firing() == {alert}


def test_brokers_that_are_all_gone_are_no_leader_too():
    """Without a series a sum is empty, not 0."""
    [rule] = [rule for rule in RULES if rule["alert"] == "StatechannelNoLeader"]
    gone = Cluster(all=lambda labels, ago_s: ... if ago_s > 600 else None)
    assert gone.promql.ask("sum by (job, channel) (statechannel_is_leader) == 0", NOW_S) == {}
    assert gone.promql.ask(rule["expr"], NOW_S) == {frozenset({("job", "j"), ("channel", "c")}): 3.0}
    never = Cluster(all=lambda labels, ago_s: None)
    assert never.promql.ask(rule["expr"], NOW_S) == {frozenset(): 1.0}
    assert "StatechannelNoLeader" in gone.firing() & never.firing()
