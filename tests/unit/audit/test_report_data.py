"""What a report holds: the audit's own figures, in bounded room, however long the log."""

import json
from contextlib import contextmanager
from pathlib import Path

import pytest

from statechannel.audit.engine import AuditQuestion, ExportSource, Wants
from statechannel.audit.errors import AuditQuestionError
from statechannel.audit.local import answer
from statechannel.audit.moments import AsOf
from statechannel.audit.report.charts import shown
from statechannel.audit.report.data import ReportLimits, ReportQuestion, complete_from, report_data
from statechannel.audit.report.ownership import COLOURS, OTHERS, colours_of
from statechannel.audit.report.time_buckets import ReportWindow
from statechannel.audit.transfer.export_file import read_export, write_export
from statechannel.audit.transfer.line import ExportHeader
from statechannel.audit.views import NotInLogError
from statechannel.cli.report_page import SIGNS
from statechannel.protocol.log import RecordRead, Topic
from statechannel.stories.incident import Incident, IncidentKind
from statechannel.stories.processes import WritersHeard
from tests.support.report_logs import HOSTILE, START_MS, LogMaker, eventful, hostile, troubled

GOLDEN = Path(__file__).parents[2] / "golden/channel-record"


@contextmanager
def silent(doing, total, *, unit=""):
    yield lambda done: None


def of(path, **question):
    return report_data(read_export(path), ReportQuestion(**question), progress=silent)


def audited(path, **wants):
    return answer(AuditQuestion(ExportSource(path), wants=Wants(**wants)), progress=silent)


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return eventful().export(tmp_path_factory.mktemp("report") / "log.jsonl")


def lanes_of(report):
    return {lane["name"]: lane for lane in report["lanes"]}


@pytest.mark.parametrize(
    "path", sorted(item for item in GOLDEN.glob("*.jsonl") if "verdicts" not in item.name), ids=lambda path: path.stem
)
def test_the_figures_are_those_of_the_audit(path):
    report, audit = of(path), audited(path, gaps=True, rejected=True)
    assert report["answer"] == audit.answer
    assert report["complete"] == audit.complete
    assert [item["offset"] for item in report["rejected"]["newest"]] == [
        item["offset"] for item in audit.rejected["newest"]
    ]
    assert report["rejected"]["all"] == audit.rejected["records"]
    certain = [g for g in audit.gaps if g["certain"]]
    assert report["gaps"]["all"] == len(certain)
    assert report["gaps"]["open"] == sum(g["length_ms"] is None for g in certain)
    assert [(g["bundle"], g["start_offset"]) for g in report["gaps"]["rows"]] == [
        (g["bundle"], g["start_offset"]) for g in certain
    ]
    owned = {broker["name"]: broker["end"] for broker in report["area"]["brokers"] if broker["end"]}
    if not audit.answer.get("tentative"):
        assert owned == audit.answer["owners"]


def test_the_area_is_what_each_broker_owned_times_how_long(tmp_path):
    log = LogMaker()
    left = log.namespace("a/b", 2)[0]
    log.move(left, "Assigning", after_ms=0, to="b1")
    log.move(left, "Assigned", "b1", 100, to="b1")
    log.transfer(left, "b2", gap_ms=40)  # b1 owns it until it lets go: 5 ms, and 20 ms Releasing
    log.now_ms += 1_000
    log.put("!heartbeat", b"{}")
    area = of(log.export(tmp_path / "log.jsonl"))["area"]
    span_ms = area["last_ms"] - area["first_ms"]
    assert {broker["name"]: round(broker["mean"] * span_ms) for broker in area["brokers"]} == {"b1": 25, "b2": 1_000}
    assert all(sum(row[1:]) <= 1 for row in area["rows"])


def test_a_timeline_holds_every_record_with_what_it_led_to(log):
    report = of(log)
    history = audited(log, history="acme/orders").history
    results = {}
    for lane in report["lanes"]:
        if lane["namespace"] == "acme/orders":
            for mark in lane["marks"]:
                if mark["verdict"] != "derived":
                    results[mark["offset"]] = (lane["name"], mark["verdict"], mark["by"])
    assert results == {row["offset"]: (row["key"], row["verdict"], row["by"]) for row in history}


def test_a_split_goes_on_in_its_children(log):
    lanes = lanes_of(of(log))
    parent = next(
        lane for lane in lanes.values() if lane["lower"] is not None and lane["marks"][-1]["state"] == "Deleted"
    )
    children = [
        lane
        for lane in lanes.values()
        if lane["namespace"] == parent["namespace"] and lane["marks"][0]["offset"] == parent["marks"][-1]["offset"]
    ]
    assert len(children) == 2
    owner = parent["marks"][-1]["from"]
    assert all(lane["marks"][0]["verdict"] == "derived" for lane in children)
    assert [lane["marks"][0]["band"][:2] for lane in children] == [["Assigned", owner]] * 2


def test_a_namespace_that_is_deleted_and_made_anew_is_one_timeline(log):
    marks = lanes_of(of(log))["acme/old/0x00000000_0x80000000"]["marks"]
    states = [mark["band"][0] for mark in marks if mark["band"]]
    assert states[:7] == ["Unassigned", "Assigning", "Assigned", "Releasing", "Unassigned", None, "Unassigned"]


@pytest.mark.parametrize("points", [10, 37, 400])
def test_a_long_log_stays_within_its_limits(tmp_path, points):
    log = LogMaker()
    [bundle, *_] = log.namespace("a/b", 4)
    log.assign(bundle, "b0")
    for number in range(400):
        log.now_ms += number
        log.transfer(bundle, f"b{(number + 1) % 7}")
        log.put(bundle, log.proposal(bundle, "Unassigned", f"w{number}") | {"version": 1})
    limits = ReportLimits(points=points, bundles=2, rows=20, brokers=3)
    report = of(log.export(tmp_path / "log.jsonl"), limits=limits)
    [lane] = [lane for lane in report["lanes"] if lane["name"] == bundle]
    assert len(report["lanes"]) == 2
    assert len(lane["marks"]) <= points
    assert lane["records"] == 1 + 2 + 400 * 4
    assert sum(mark.get("n", 1) for mark in lane["marks"]) == lane["records"]
    assert sum(mark["rejected"] for mark in lane["marks"]) == 400
    for times in (report["gaps"]["times"], report["rejected"]["times"]):
        assert len(times["rows"]) <= points
        assert sum(row[1] for row in times["rows"]) == 400
    assert len(report["area"]["rows"]) <= points
    assert [broker["name"] for broker in report["area"]["brokers"]][-1] == OTHERS
    assert len(report["area"]["brokers"]) == 4
    assert (len(report["gaps"]["rows"]), report["gaps"]["all"]) == (20, 400)
    assert (len(report["rejected"]["by_writer"]), report["rejected"]["writers_all"]) == (20, 400)
    assert report["rejected"]["all"] == 400


def test_who_is_asked_for_has_a_timeline_with_what_it_came_from(log):
    whole = lanes_of(of(log))
    narrow = max(
        (lane for lane in whole.values() if lane["lower"] is not None), key=lambda lane: lane["lower"] - lane["upper"]
    )
    lanes = lanes_of(of(log, wanted=[narrow["name"]]))
    assert {narrow["name"], narrow["namespace"]} <= lanes.keys()
    for lane in lanes.values():
        assert lane == whole[lane["name"]]
        assert lane["lower"] is None or (lane["lower"] <= narrow["lower"] and narrow["upper"] <= lane["upper"])
    assert len(lanes) < len(whole)
    topic = lanes_of(of(log, wanted=["acme/bills/invoices"]))
    assert {lane["namespace"] for lane in topic.values()} == {"acme/bills"}


def test_a_name_that_means_nothing_is_refused(log):
    with pytest.raises(AuditQuestionError, match="neither a bundle"):
        of(log, wanted=["nothing"])
    with pytest.raises(NotInLogError, match="acme/none"):
        of(log, wanted=["acme/none"])


def test_as_of_a_moment_nothing_later_is_told(log):
    report = of(log, as_of=AsOf(offset=200))
    assert report["answer"] == answer(AuditQuestion(ExportSource(log), as_of=AsOf(offset=200)), progress=silent).answer
    assert max(mark["offset"] for lane in report["lanes"] for mark in lane["marks"]) <= 200


def test_a_compacted_log_tells_nothing_from_before_it_is_complete():
    report = of(GOLDEN / "compacted-2.jsonl")
    [partition] = report["partitions"]
    assert complete_from(report["partitions"]) == partition["complete_from"]["timestamp_ms"]
    marks = [mark for lane in report["lanes"] for mark in lane["marks"]]
    assert min(mark["offset"] for mark in marks) >= partition["first_offset"] > 0
    assert any(lane["start"] for lane in report["lanes"])


def test_a_log_that_nobody_vouches_for_has_no_past(tmp_path):
    lines = (GOLDEN / "compacted-2.jsonl").read_text().splitlines(keepends=True)
    path = tmp_path / "log.jsonl"
    path.write_text("".join(line for line in lines if "heartbeat" not in line))
    report = of(path)
    assert report["answer"]["tentative"] is True
    assert complete_from(report["partitions"]) is None
    assert report["area"]["rows"] == []
    assert not any(lane["marks"] for lane in report["lanes"])


def test_an_empty_log_is_a_report_too(tmp_path):
    report = of(LogMaker().export(tmp_path / "log.jsonl"))
    assert (report["lanes"], report["area"]["rows"], report["gaps"]["all"]) == ([], [], 0)


def test_texts_of_strangers_hold_no_control_characters_and_are_cut(tmp_path):
    report = json.dumps(of(hostile().export(tmp_path / "log.jsonl")), ensure_ascii=False)
    assert "</script><img src=x" in report  # what is shown is made harmless where it is shown, not here
    assert not {"\u202e", "\u0007"} & set(report)
    assert "\\u0007" not in report.lower()
    assert len(shown(HOSTILE * 10)) == 160


@pytest.fixture(scope="module")
def trouble(tmp_path_factory):
    return troubled().export(tmp_path_factory.mktemp("trouble") / "log.jsonl")


def test_incidents_are_found_in_the_log_alone(trouble):
    report = of(trouble)
    kinds = [incident["kind"] for incident in report["incidents"]]
    assert kinds == ["owner-lost", "silence", "started", "gap", "leader"]
    assert "1 lost broker, 1 outage, 1 change of leader, 1 start, 1 long gap" in report["summary"][1]


def test_the_registry_replaces_what_the_log_only_suggests(trouble):
    lost, silence = of(trouble)["incidents"][:2]
    registry = [
        Incident(lost["at_ms"], IncidentKind.LOST, "b2 was lost without a goodbye", lost="b2"),
        Incident(silence["at_ms"] + 1, IncidentKind.MODE, "b1 is in safe mode"),
    ]
    found = of(trouble, registry=registry)["incidents"]
    assert [one["kind"] for one in found] == ["owner-lost", "mode", "gap"]


def test_a_log_without_trouble_says_so(tmp_path):
    log = LogMaker()
    log.assign(log.namespace("a/b", 1)[0], "b1")
    report = of(log.export(tmp_path / "log.jsonl"))
    assert report["incidents"] == []
    assert len(report["summary"]) == 3


def test_missing_heartbeats_of_a_compacted_log_are_no_outage(tmp_path):
    log = LogMaker()
    log.assign(log.namespace("a/b", 1)[0], "b1")
    for _ in range(40):
        log.beat("b1")
    beats = [one for one in log.records if one.key == b"!heartbeat"]
    kept = {one.offset for one in (*beats[:2], *beats[-5:])}
    log.records = [one for one in log.records if one.key != b"!heartbeat" or one.offset in kept]
    path = tmp_path / "log.jsonl"
    write_export(
        path,
        ExportHeader("bundle-state", {0: beats[-1].offset + 1}, log.now_ms),
        log.records,
        now_ms=lambda: log.now_ms,
    )
    assert [one["kind"] for one in of(path)["incidents"]] == []


def test_what_a_lost_owner_did_not_serve_is_unserved(tmp_path):
    log = LogMaker()
    bundle = log.namespace("a/b", 1)[0]
    log.assign(bundle, "b2")
    log.beat("b1", after_ms=10_000)
    log.lose(bundle, "b3", heard_ago_ms=4_000)
    log.beat("b1")
    area = of(log.export(tmp_path / "log.jsonl"))["area"]
    names = [one["name"] for one in area["brokers"]]
    span_ms = dict.fromkeys([*names, "between"], 0.0)
    for at, *figures in area["unserved"]:
        covered_ms = min(at + area["width_ms"], area["last_ms"]) - max(at, area["first_ms"])
        for name, figure in zip(span_ms, figures, strict=True):
            span_ms[name] += figure * covered_ms
    assert {name: round(figure) for name, figure in span_ms.items()} == {"b2": 4_005, "b3": 0, "between": 5}


def test_a_window_shows_only_what_happened_in_it(trouble):
    whole = of(trouble)
    lost, silence = whole["incidents"][0], whole["incidents"][1]
    window = ReportWindow(silence["at_ms"] + 1_000, None)
    late = of(trouble, window=window)
    assert (late["area"]["first_ms"], late["area"]["last_ms"]) == (window.since_ms, whole["area"]["last_ms"])
    assert [one["kind"] for one in late["incidents"]] == ["started", "gap", "leader"]
    assert [gap["cause"] for gap in late["gaps"]["rows"]] == ["transfer"]
    assert late["area"]["brokers"] == [one | {"mean": late_mean(late, one["name"])} for one in whole["area"]["brokers"]]
    assert all(mark["ms"] >= window.since_ms for lane in late["lanes"] for mark in lane["marks"])
    assert all(lane["start"] for lane in late["lanes"])
    early = of(trouble, window=ReportWindow(None, lost["at_ms"] + 2_000))
    assert early["area"]["last_ms"] <= lost["at_ms"] + 2_000
    assert {one["name"]: one["end"] for one in early["area"]["brokers"]} == {"b1": 1, "b2": 2, "b3": 1}
    assert early["answer"] == late["answer"] == whole["answer"]
    nothing = of(trouble, window=ReportWindow(START_MS + 10**9, None))
    assert (nothing["incidents"], nothing["gaps"]["all"]) == ([], 0)


def late_mean(report, name):
    """Bundles of a broker in the mean, by the rows of its chart."""
    area = report["area"]
    column = [one["name"] for one in area["brokers"]].index(name) + 1
    ends = [(row[0], min(row[0] + area["width_ms"], area["last_ms"])) for row in area["rows"]]
    sum_ms = sum(
        row[column] * (end - max(start, area["first_ms"])) for row, (start, end) in zip(area["rows"], ends, strict=True)
    )
    return pytest.approx(sum_ms / (area["last_ms"] - area["first_ms"]), abs=0.01)


def test_the_heat_map_has_the_owner_of_most_of_each_cell_and_all_gaps(trouble):
    report = of(trouble, limits=ReportLimits(heat_columns=20))
    heat, names = report["heat"], [one["name"] for one in report["area"]["brokers"]]
    assert heat["columns"] <= 20
    owners = {
        row["name"].rpartition("/")[2]: [names[owner] for _, owner in row["runs"] if owner >= 0] for row in heat["rows"]
    }
    assert owners == {
        "0x00000000_0x40000000": ["b1", "b3"],
        "0x40000000_0x80000000": ["b2", "b3"],
        "0x80000000_0xc0000000": ["b2", "b3"],
        "0xc0000000_0xffffffff": ["b3"],
    }
    lengths = {gap["bundle"]: gap["length_ms"] for gap in report["gaps"]["rows"]}
    assert {row["name"]: sum(ms for _, ms in row["gaps"]) for row in heat["rows"] if row["gaps"]} == lengths


def test_rows_of_the_heat_map_are_bounded_and_the_worst_come_first(log):
    whole = of(log)
    few = of(log, limits=ReportLimits(heat_rows=5))
    kept = {row["name"] for row in few["heat"]["rows"]}
    sums: dict[str, int] = {}
    for gap in whole["gaps"]["rows"]:
        sums[gap["bundle"]] = sums.get(gap["bundle"], 0) + (gap["length_ms"] or 0)
    assert kept == set(sorted(sums, key=lambda name: -sums[name])[:5])
    assert [row["name"] for row in few["heat"]["rows"]] == [
        r["name"] for r in whole["heat"]["rows"] if r["name"] in kept
    ]


def test_a_broker_has_the_same_colour_in_every_report():
    few, more = colours_of(["b1", "b3"]), colours_of([f"b{number}" for number in range(1, 13)])
    assert few == {name: more[name] for name in few}
    assert len(set(more.values())) == 12
    assert colours_of(["zone-a", "zone-b"]) == colours_of(["zone-b", "zone-a"])
    assert len(set(colours_of([f"broker-{number}.example" for number in range(COLOURS)]).values())) == COLOURS
    assert set(colours_of([f"b{number}" for number in range(60)]).values()) == set(range(COLOURS))


def test_a_report_of_forged_records_comes_first(tmp_path):
    log = LogMaker()
    log.assign(log.namespace("a/b", 1)[0], "b1")
    seen = Incident(log.now_ms, IncidentKind.FORGED, "b2 has read 2 records in its own name that it did not write")
    report = of(log.export(tmp_path / "log.jsonl"), registry=(seen,))
    assert report["summary"][0] == "Forged: b2 has read 2 records in its own name that it did not write."
    assert "Incidents: 1 report of forged records." in report["summary"]


def test_the_summary_counts_every_incident(tmp_path):
    log = LogMaker()
    log.assign(log.namespace("a/b", 1)[0], "b1")
    kinds = (IncidentKind.LEADER, IncidentKind.LEFT, IncidentKind.MODE, IncidentKind.GAP)
    registry = tuple(Incident(log.now_ms, kind, f"of the kind {kind}") for kind in kinds)
    report = of(log.export(tmp_path / "log.jsonl"), registry=registry)
    assert "Incidents: 1 change of leader, 1 long gap in service, 2 others." in report["summary"]


def test_persons_are_named_where_their_requests_are_known(tmp_path):
    log = LogMaker()
    bundle = log.namespace("t/n", 1)[0]
    log.assign(bundle, "b1")
    log.transfer(bundle, "b2", operation="op-f")
    report = of(log.export(tmp_path / "log.jsonl"), persons={"op-f": "root@vm"})
    (gap,) = [row for row in report["gaps"]["rows"] if row["requested_by"]]
    assert (gap["requested_by"], gap["why"].endswith("; requested by root@vm")) == ("root@vm", True)
    marks = [mark for lane in report["lanes"] for mark in lane["marks"] if mark.get("operation") == "op-f"]
    assert {mark["note"].startswith("requested by root@vm") for mark in marks} == {True}


def test_every_kind_of_incident_has_a_sign_that_is_drawn():
    """Lines that are only filled are invisible."""
    assert set(SIGNS) == set(IncidentKind)
    for classes, path, _ in SIGNS.values():
        closed = "Z" in path
        assert closed or "solid" not in classes.split(), path
    forged = SIGNS[IncidentKind.FORGED]
    assert [kind for kind, sign in SIGNS.items() if sign[0].split()[0] == forged[0]] == [IncidentKind.FORGED]


def paused_log():
    """b2 is lost with one bundle and repaired; it is heard again 20 s later."""
    log = LogMaker()
    bundle, other = log.namespace("t/n", 2)
    log.assign(bundle, "b2")
    log.assign(other, "b1")
    log.now_ms += 60_000
    lost_ms = log.now_ms - 6_000
    log.lose(bundle, "b3", heard_ago_ms=6_000 - 5)
    log.now_ms += 20_000
    log.beat("b2")
    return log, bundle, lost_ms + 10


def beats_of_b2(*beats):
    """Log time, number and own clock of heartbeats."""
    writers = WritersHeard()
    for number, (at_ms, seq, sent_ms) in enumerate(beats):
        info = {"broker": "b2", "incarnation": "b2-1", "seq": seq, "sent_at_ms": sent_ms}
        writers.observe(RecordRead(Topic.REGISTRY, 0, number, at_ms, b"", b""), info)
    return writers


def test_the_report_lists_overlaps_with_the_bounds_of_the_command(tmp_path):
    log, bundle, _ = paused_log()
    path = log.export(tmp_path / "log.jsonl")
    overlaps = of(path)["overlaps"]
    (row,) = overlaps["rows"]
    assert (row["bundle"], row["from"], row["to"], row["until_ms"]) == (bundle, "b2", "b3", log.now_ms)
    assert overlaps["sums"]["bundle_ms"] == row["length_ms"] > 20_000
    early = of(path, window=ReportWindow(until_ms=row["since_ms"] - 1))["overlaps"]
    assert (early["rows"], early["sums"]["overlaps"]) == ([], 0)


def test_a_gap_says_that_its_lost_owner_stood_still(tmp_path):
    log, _, lost_ms = paused_log()
    path = log.export(tmp_path / "log.jsonl")
    still = beats_of_b2((lost_ms - 1_000, 1, 1_000), (lost_ms, 2, 2_000), (lost_ms + 26_000, 3, 28_000))
    gaps = {gap["cause"]: gap for gap in of(path, writers=still)["gaps"]["rows"]}
    assert gaps["owner-lost"]["stood_still_ms"] == 26_000
    assert "; b2 stood still for 26.0 s" in gaps["owner-lost"]["why"]
    # One that was cut off went on making heartbeats.
    cut_off = beats_of_b2((lost_ms - 1_000, 1, 1_000), (lost_ms, 2, 2_000), (lost_ms + 26_000, 28, 28_000))
    for writers in (cut_off, None):
        gaps = {gap["cause"]: gap for gap in of(path, writers=writers)["gaps"]["rows"]}
        assert gaps["owner-lost"]["stood_still_ms"] is None
