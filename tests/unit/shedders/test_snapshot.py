"""Snapshot files: what is read, what is refused and with which words, and that nothing is lost on the way."""

import json
from dataclasses import fields, replace
from math import nan
from pathlib import Path

import pytest

from loaddata.model.broker_load import BrokerLoad, ResourceUsage
from loaddata.model.bundle_load import BundleAverages, BundleStats, MessageAverage
from shedders.decision.booked_moves import Booked
from shedders.model.cluster import Broker, Bundle, Cluster, IsolationPolicy, Policies, RecentMoves, TopicLoad
from shedders.model.moved_cluster import MovedLoad, cargo_of
from shedders.schemas import FOLDER, schemas
from shedders.snapshots.cluster import booked_of, cluster_of, remarks, snapshot_of, with_cluster
from shedders.snapshots.file import SnapshotError, parse_snapshot, read_snapshot, snapshot_bytes, write_snapshot
from shedders.snapshots.model import (
    AveragePart,
    BookedPart,
    BrokerPart,
    BundlePart,
    CargoPart,
    IsolationPart,
    LoadReport,
    PoliciesPart,
    RecentPart,
    Snapshot,
    SnapshotPart,
    StatsPart,
    TopicPart,
    UsageEntry,
)
from statechannel.protocol.bundle import topic_hash
from tests.support.snapshots import Shape, cluster

LEFT, RIGHT = "t/n/0x00000000_0x80000000", "t/n/0x80000000_0xffffffff"
BASE = {
    "kind": "statechannel-snapshot",
    "format": 1,
    "brokers": {"b-1:8080": {"load": {"cpu": {"usage": 5, "limit": 100}}}, "b2": {}},
    "bundles": {LEFT: {"owner": "b-1:8080"}, RIGHT: {}},
}


def parsed(**changes: object) -> Snapshot:
    return parse_snapshot(json.dumps(BASE | changes).encode())


def refused(**changes: object) -> list[str]:
    with pytest.raises(SnapshotError) as caught:
        parsed(**changes)
    assert caught.value.exit_code == 7
    assert caught.value.hint
    return list(caught.value.problems)


def refused_text(raw: bytes) -> str:
    with pytest.raises(SnapshotError) as caught:
        parse_snapshot(raw, "FILE")
    assert str(caught.value).startswith("FILE: ")
    return str(caught.value).removeprefix("FILE: ")


def broker(**fields: object) -> dict[str, object]:
    return {"brokers": {"b-1:8080": fields, "b2": {}}}


def test_the_least_that_a_snapshot_holds() -> None:
    cluster = cluster_of(parsed())
    assert cluster.brokers["b2"].load is None
    assert cluster.brokers["b-1:8080"].load.cpu.percent == 5
    assert cluster.bundles[LEFT].owner == "b-1:8080"
    assert cluster.bundles[RIGHT].owner is None


def paths(**changes: object) -> list[str]:
    """Where the faults are."""
    return [problem.split(" ")[0].removesuffix(":") for problem in refused(**changes)]


@pytest.mark.parametrize(
    ("load", "path"),
    [
        ({"cpu": {"usage": -1}}, ".cpu.usage"),
        ({"cpu": {"limit": -0.5}}, ".cpu.limit"),
        ({"cpu": {"usage": "5"}}, ".cpu.usage"),
        ({"cpu": {"usage": True}}, ".cpu.usage"),
        ({"cpu": {"usage": None}}, ".cpu.usage"),
        ({"msg_rate_in": nan}, ".msg_rate_in"),
        ({"bundles": 1.5}, ".bundles"),
        ({"msg_rate": 1}, ".msg_rate"),
        ([], ""),
    ],
)
def test_what_is_wrong_with_a_load_is_told_by_its_path(load: object, path: str) -> None:
    assert paths(**broker(load=load)) == [f'brokers["b-1:8080"].load{path}']


def bundles(**fields: object) -> dict[str, object]:
    return {"bundles": {LEFT: fields, RIGHT: {}}}


def move(**fields: object) -> dict[str, object]:
    return {"bundle": LEFT, "source": "b-1:8080", "destination": "b2", **fields}


OWN = f'bundles["{LEFT}"]'


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        (bundles(owner="b-1:80"), f"{OWN}.owner"),
        (bundles(state="Assigned"), f"{OWN}.owner"),
        (bundles(state="Unassigned", owner="b2"), f"{OWN}.owner"),
        (bundles(short={"msg_rate_in": -1}), f"{OWN}.short.msg_rate_in"),
        (bundles(topics=[{"name": "persistent://t/n/a", "position": 0x80000000}]), f"{OWN}.topics[0].position"),
        (bundles(topics=[{"name": "x", "position": 1}, {"name": "x", "position": 1}]), f"{OWN}.topics[1].name"),
        ({"bundles": {LEFT: {}, "t/n/0x70000000_0x90000000": {}}}, 'bundles["t/n/0x70000000_0x90000000"]'),
        ({"bundles": {"t/n": {}}}, 'bundles["t/n"]'),
        ({"gone": ["b2"]}, "gone"),
        ({"booked": [move(bundle="x")]}, "booked[0].bundle"),
        ({"booked": [move(destination="b-2")]}, "booked[0].destination"),
        ({"booked": [move(), move()]}, "booked[1].bundle"),
        ({"booked": [move(destination="b-1:8080")]}, "booked[0].destination"),
        ({"booked": [move(arrived=True)]}, "booked[0]"),
        ({"clock": {"now_ms": -1}}, "clock.now_ms"),
        ({"recent": {"bundles": {LEFT: -1}}}, f"recent.{OWN}"),
        ({"polices": {}}, "polices"),
        ({"memory": {"shedding": {"x": {"y": json.loads("[" * 40 + "]" * 40)}}}}, "memory.shedding.x"),
        ({"format": 2}, "format"),
    ],
)
def test_contradictions_are_told_by_their_path(changes: dict[str, object], path: str) -> None:
    assert paths(**changes) == [path]


def isolation(*parts: dict[str, object]) -> dict[str, object]:
    return {"isolation": [{"name": "p", "namespaces": ["t/.*"], "primary": ["b2"], **part} for part in parts]}


@pytest.mark.parametrize(
    ("policies", "path"),
    [
        (isolation({}, {}), "isolation[1].name"),
        (isolation({"namespaces": []}), "isolation[0].namespaces"),
        (isolation({"primary": []}), "isolation[0]"),
        (isolation({"secondary": ["("]}), "isolation[0].secondary[0]"),
        ({"excluded": ["t"]}, "excluded"),
        ({"excluded": ["t/n", "t/n"]}, "excluded"),
        ({"anti_affinity": {"t": "g"}}, "anti_affinity"),
        ({"pins": {"x": "b2"}}, "pins"),
    ],
)
def test_policies_that_cannot_be_meant(policies: dict[str, object], path: str) -> None:
    assert paths(policies=policies) == [f"policies.{path}"]


def test_every_fault_is_told_at_once_up_to_a_bound() -> None:
    with pytest.raises(SnapshotError) as caught:
        parsed(brokers={f"b{number}": {"x": 1} for number in range(30)}, bundles={})
    assert len(caught.value.problems) == 30
    assert len(str(caught.value).splitlines()) < 15


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b'{"kind": "statechannel-snapshot", "brokers": {"b": {}, "b": {}}}', "the name 'b' is there twice"),
        (b'{"a": [1, {"x" : 1, "x": 1}]}', "the name 'x' is there twice"),
        (b'{"a": "\\":", "a": 2}', "the name 'a' is there twice"),
        (b'{"kind": 1}', 'not a snapshot: `"kind": "statechannel-snapshot"` is missing'),
        (b"[]", 'not a snapshot: `"kind": "statechannel-snapshot"` is missing'),
        (b"", "it is not JSON: "),
        (b'{"a": 01}', "it is not JSON: "),
        (b"\xff", "it is not JSON: "),
        (b"[" * 100_000, "it is not JSON: "),
    ],
)
def test_what_is_no_json_or_takes_liberties(raw: bytes, problem: str) -> None:
    assert refused_text(raw).startswith(problem)


def test_names_in_texts_are_no_duplicates() -> None:
    assert parsed(safe='\U0001f600 "safe": "remarks":').safe == '\U0001f600 "safe": "remarks":'


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="it cannot be read: No such file or directory"):
        read_snapshot(tmp_path / "none.json")
    with pytest.raises(SnapshotError, match="it is not a file"):
        read_snapshot(tmp_path)
    with pytest.raises(SnapshotError, match="it cannot be written"):
        write_snapshot(parsed(), tmp_path / "no" / "folder.json")


FULL = Cluster(
    brokers={
        "b1": replace(cluster(1).brokers["b0:8080"], name="b1", load_lapsed=True, domain="z", web_address="h:1"),
        "b2": Broker("b2", accepting=False, persistent=False, manager="modular", load_age_s=0.1 + 0.2),
    },
    bundles={
        LEFT: replace(next(iter(cluster(2, Shape(topics_each=3)).bundles.values())), name=LEFT, owner="b1", topics=()),
        RIGHT: Bundle(RIGHT, "lost", in_flight=True, non_persistent=True, estimated=True),
        "t/m/0x00000000_0xffffffff": Bundle("t/m/0x00000000_0xffffffff"),
    },
    policies=Policies(
        (IsolationPolicy("p", ("t/n",), ("h",), ("b2",), 2),),
        {"t/n": "g"},
        {"t/n": "b1", LEFT: "b2"},
        {"b2": "drained"},
        frozenset({"t/m", "t/n"}),
    ),
    recent=RecentMoves({LEFT: 1 / 3}, {"b1": 0.0}),
    now_ms=2**53,
    safe="quorum lost",
)


def test_a_cluster_comes_back_bit_for_bit() -> None:
    booked = [Booked(LEFT, "b1", "b2", MovedLoad(1 / 3, topics=2), source_knows=True)]
    snapshot = snapshot_of(FULL, booked=booked)
    again = parse_snapshot(snapshot_bytes(snapshot))
    assert again == snapshot
    assert cluster_of(again) == FULL
    assert again.gone == ["lost"]
    assert booked_of(again, FULL) == booked
    assert snapshot_bytes(again) == snapshot_bytes(snapshot)


def test_what_goes_along_is_reckoned_where_it_is_not_said() -> None:
    snapshot = parsed(booked=[move()], bundles={LEFT: {"owner": "b-1:8080", "stats": {"msg_rate_in": 3}}, RIGHT: {}})
    cluster = cluster_of(snapshot)
    booked = booked_of(snapshot, cluster)
    assert booked[0].cargo == cargo_of(cluster.bundles[LEFT], cluster.brokers["b-1:8080"].load)
    assert booked[0].cargo.msg_rate_in == 3


def test_the_way_that_a_bundle_is_on_stays() -> None:
    snapshot = parsed(bundles={LEFT: {"owner": "b2", "state": "Splitting"}, RIGHT: {"state": "Assigning"}})
    cluster = cluster_of(snapshot)
    assert all(bundle.in_flight for bundle in cluster.bundles.values())
    assert [bundle.state for bundle in with_cluster(snapshot, cluster).bundles.values()] == ["Splitting", "Assigning"]
    landed = replace(cluster, bundles={LEFT: replace(cluster.bundles[LEFT], in_flight=False)})
    assert with_cluster(snapshot, landed).bundles[LEFT].state == "Assigned"
    assert snapshot_of(cluster).bundles[LEFT].state == "Releasing"


def test_profile_settings_and_memory_stay_when_the_cluster_changes() -> None:
    extra = {
        "profile": "production",
        "strategies": {"shedding": "uniform"},
        "settings": {"shedding": {"uniform": {"x": 1}}},
        "memory": {"shedding": {"transfer": {"hits": 2}}},
    }
    snapshot = parsed(**extra)
    assert with_cluster(snapshot, cluster()).model_dump(include=set(extra)) == snapshot.model_dump(include=set(extra))


def test_a_cluster_that_cannot_be_written_is_told() -> None:
    bad = replace(cluster(), brokers={"b": Broker("b", load_age_s=nan)})
    with pytest.raises(SnapshotError, match=r"the cluster has faults|load_age_s: expected a finite number"):
        snapshot_of(bad)


def test_a_topic_is_placed_by_its_hash() -> None:
    name = next(
        f"persistent://t/n/{number}" for number in range(99) if topic_hash(f"persistent://t/n/{number}") < 1 << 31
    )
    cluster = cluster_of(parsed(bundles={LEFT: {"topics": [{"name": name}]}, RIGHT: {}}))
    assert cluster.bundles[LEFT].topics[0].position == topic_hash(name)


def list_problems(snapshot: Snapshot) -> list[str]:
    return remarks(snapshot, cluster_of(snapshot))


def test_remarks_tell_what_may_not_be_meant() -> None:
    snapshot = parsed(
        gone=["b9"],
        bundles={LEFT: {"owner": "b9"}, RIGHT: {"owner": "b2", "state": "Splitting"}},
        policies={
            "isolation": [{"name": "p", "namespaces": ["t/n"], "primary": ["b-1"]}],
            "pins": {"t/n": "b2"},
            "cordons": {"b8": "x"},
        },
    )
    assert list_problems(snapshot) == [
        "b9 is gone and owns 1 bundle",
        "broker b2 has no load report",
        f"nobody: no broker may take `{LEFT}`: pin t/n -> b2 allows b2; isolation p allows b-1:8080",
        "unknown-broker: `b8` is cordoned and not registered",
        "1 bundle in flight, left alone",
    ]
    assert "b-1:8080 reports no limit of any resource" in list_problems(parsed(**broker(load={})))[0]


@pytest.mark.parametrize(
    ("seen", "part", "elsewhere"),
    [
        (Broker, BrokerPart, {"name"}),
        (BrokerLoad, LoadReport, set()),
        (ResourceUsage, UsageEntry, set()),
        (Bundle, BundlePart, {"name", "in_flight", "averages"}),
        (BundleAverages, BundlePart, set()),
        (BundleStats, StatsPart, set()),
        (MessageAverage, AveragePart, set()),
        (TopicLoad, TopicPart, set()),
        (IsolationPolicy, IsolationPart, set()),
        (Policies, PoliciesPart, set()),
        (RecentMoves, RecentPart, set()),
        (Cluster, Snapshot, {"now_ms"}),
        (Booked, BookedPart, set()),
        (MovedLoad, CargoPart, set()),
    ],
)
def test_a_snapshot_has_all_that_a_strategy_sees(seen: type, part: type[SnapshotPart], elsewhere: set[str]) -> None:
    """Whoever gives a cluster another field has to give it to the snapshot, too."""
    assert {field.name for field in fields(seen)} - elsewhere <= set(part.model_fields)


@pytest.mark.parametrize("name", ["snapshot.schema.json", "plan.schema.json"])
def test_the_schema_files_are_those_of_the_models(name: str) -> None:
    assert (FOLDER / name).read_text() == schemas()[name], "run python -m shedders.schemas"


def test_every_field_of_the_schema_is_explained() -> None:
    silent = {
        f"{title}.{name}"
        for title, part in json.loads(schemas()["snapshot.schema.json"])["$defs"].items()
        for name, field in part.get("properties", {}).items()
        if "description" not in field
    }
    assert silent == set()
