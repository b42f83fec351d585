"""Which decision and which settings a snapshot of a live cluster has: those that its leader would go on with."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from loaddata.model.broker_load import BrokerLoad, ResourceUsage, ResourceWeights
from loaddata.report.record import encode_broker_load
from shedders.balancer.active_strategies import in_force
from shedders.balancer.settings import BalancerSettings
from shedders.balancer.snapshot_from_topics import Choice, changed_since, of_chosen
from shedders.decisions.builder import shed_record
from shedders.decisions.history import DecisionRead
from shedders.decisions.record import DRAIN, DecisionRecord
from shedders.decisions.topic import is_cycle
from shedders.policies.book import PolicyBook
from shedders.policies.effective import EffectivePolicies
from shedders.policies.kinds import PolicyKind
from shedders.policies.record import PolicyRecord, encode, made_key
from shedders.queries import live_source
from statechannel.kafka.errors import TopicMissingError
from statechannel.protocol.side_record import SideRecord
from statechannel.queries.connection import Notes
from tests.support.decision_records import AT_MS, decision, occasion
from tests.support.load_reports import report
from tests.support.load_rows import top_record

COMMON = EffectivePolicies(weights=ResourceWeights(cpu=4.0), shed_with_policies=True)


class Reader:
    """The topic of decisions, as one reader sees it."""

    def __init__(self, records: Sequence[DecisionRecord]) -> None:
        self._read = [DecisionRead(number, AT_MS, record) for number, record in enumerate(records)]
        self.ended = ""

    def newest(self, count: int, wanted: Callable[[Any], bool]) -> Sequence[DecisionRead]:
        start = max((item.offset for item in self._read if wanted(item.record)), default=0)
        return self._read[start:]


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[DecisionRecord | None, Choice]]:
    """What is found of these records."""

    def decide_source(
        *records: DecisionRecord,
        settings: BalancerSettings | None = None,
        effective: EffectivePolicies | None = None,
        remarks: list[str] | None = None,
        there: bool = True,
    ) -> tuple[DecisionRecord | None, Choice]:
        @contextmanager
        def reader(_: object) -> Iterator[Reader]:
            if not there:
                raise TopicMissingError("no topic")
            yield Reader(records)

        monkeypatch.setattr(live_source, "decision_reader", reader)
        nowhere: Any = None
        return live_source._decided(
            nowhere, settings or BalancerSettings(), effective, [] if remarks is None else remarks
        )

    return decide_source


def cycle(number: int, **more: Any) -> DecisionRecord:
    results = {"settings": {"shedding": {"target_std": 0.125}}, "write_settings": True, **more}
    return shed_record(occasion(number, **results), decision())


def drained(number: int) -> DecisionRecord:
    return shed_record(occasion(number, strategy=DRAIN, settings={"drain": {}}, write_settings=True), decision())


# --- the newest decision ----------------------------------------------------------------------------------------------


def test_a_drain_is_no_decision_to_go_on_with(decided: Callable[..., Any]) -> None:
    newest, choice = decided(cycle(1), drained(2))
    assert (newest.cycle, newest.strategy) == (1, "transfer")
    assert choice.names["shedding"] == "transfer"
    assert choice.settings["shedding"] == {"target_std": 0.125}
    assert decided(drained(1))[0] is None


def test_a_command_and_a_new_leader_go_on_with_the_same_decision() -> None:
    skipped = cycle(3).model_copy(update={"skipped": "safe-mode"})
    split = cycle(4).model_copy(update={"subject": "split"})
    assert [is_cycle(item) for item in (cycle(1), drained(2), skipped, split)] == [True, False, False, False]


# --- without a usable one ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize(
    ("settings", "effective"),
    [
        ({}, COMMON),
        ({"shedding": "threshold"}, COMMON),
        ({"shedding": "threshold", "strategies": {"shedding": {"threshold": {"cpu_weight": 2.0}}}}, COMMON),
        ({}, EffectivePolicies(settings={"shedding.transfer.shed_with_policies": False}, shed_with_policies=True)),
        ({}, EffectivePolicies(manager="modular", weights=ResourceWeights(memory=3.0))),
        ({}, EffectivePolicies(settings={"shedding": "avg", "balancer.interval_s": 5})),
        ({}, None),
    ],
)
def test_policies_count_as_they_do_in_the_leader(
    decided: Callable[..., Any], settings: dict[str, Any], effective: EffectivePolicies | None, there: bool
) -> None:
    own = BalancerSettings(**settings)
    _, choice = decided(settings=own, effective=effective, there=there)
    assert choice == of_chosen(in_force(own, effective)[1])


def test_weights_and_leave_to_shed_bundles_with_policies_are_in_it(decided: Callable[..., Any]) -> None:
    _, choice = decided(settings=BalancerSettings(shedding="threshold"), effective=COMMON)
    assert choice.settings["shedding"]["cpu_weight"] == 4.0
    _, choice = decided(settings=BalancerSettings(shedding="transfer"), effective=COMMON)
    assert choice.settings["shedding"]["shed_with_policies"] is True


# --- policies that are younger ----------------------------------------------------------------------------------------


def book(*entries: tuple[int, PolicyKind, str, dict[str, Any], int | None]) -> PolicyBook:
    book = PolicyBook()
    for offset, kind, name, value, until_ms in entries:
        key = made_key(kind, name, override=until_ms is not None)
        record = PolicyRecord(key, value, "me", until_ms=until_ms, written_at_ms=AT_MS)
        book.take(offset, AT_MS, key.encode(), encode(record))
    return book


LAID_DOWN: list[tuple[PolicyKind, str, dict[str, Any]]] = [
    (PolicyKind.WEIGHTS, "cluster", {"cpu": 2.0}),
    (PolicyKind.SHED_WITH_POLICIES, "cluster", {"allowed": True}),
    (PolicyKind.MANAGER, "cluster", {"manager": "modular"}),
    (PolicyKind.SETTING, "shedding", {"value": "avg"}),
]


@pytest.mark.parametrize(("kind", "name", "value"), LAID_DOWN)
def test_whatever_strategies_are_chosen_by_is_seen_to_have_changed(kind: PolicyKind, name: str, value: dict[str, Any]):
    before = cycle(1)  # it knew the policies through offset 3
    assert changed_since(before, book((3, kind, name, value, None)).at(AT_MS)) == []
    assert changed_since(before, book((4, kind, name, value, None)).at(AT_MS)) == [f"{kind}/{name}"]


def test_what_has_lapsed_since_or_was_deleted_has_changed_too() -> None:
    before = cycle(1)
    kind, name, value = LAID_DOWN[0]
    policies = book((2, kind, name, value, before.at_ms + 5_000))
    assert changed_since(before, policies.at(before.at_ms + 4_000)) == []
    assert changed_since(before, policies.at(before.at_ms + 5_000)) == [f"override/{kind}/{name}"]
    early = book((2, kind, name, value, before.at_ms - 5_000))
    assert changed_since(before, early.at(before.at_ms + 5_000)) == []
    effective = book((2, kind, name, value, None))
    effective.take(5, AT_MS, made_key(kind, name).encode(), None)
    assert changed_since(before, effective.at(AT_MS)) == [f"{kind}/{name}"]


def test_then_policies_count_over_the_settings_of_the_command(decided: Callable[..., Any]) -> None:
    remarks: list[str] = []
    effective = book((9, PolicyKind.WEIGHTS, "cluster", {"cpu": 2.0}, None)).at(AT_MS)
    own = BalancerSettings(shedding="threshold")
    newest, choice = decided(cycle(1), settings=own, effective=effective, remarks=remarks)
    assert newest is not None
    assert choice == of_chosen(in_force(own, effective)[1])
    assert choice.settings["shedding"]["cpu_weight"] == 2.0
    assert remarks[0].startswith("set after the newest decision: weights/cluster")


def test_the_load_of_brokers_and_of_the_heaviest_bundles(monkeypatch: pytest.MonkeyPatch) -> None:
    load = BrokerLoad(cpu=ResourceUsage(40.0, 200.0), memory=ResourceUsage(5.0, 0.0), msg_throughput_in=7.0)
    written = [
        SideRecord(name.encode(), encode_broker_load(report(name, load=load)), (), 1, 5_000) for name in ("b2", "b1")
    ]
    loads = [*written, SideRecord(b"b3", None, (), 3, 5_000), SideRecord(b"b4", b"junk", (), 4, 5_000)]
    tops = [top_record("b1", 0, 1, 3, 5_000), SideRecord(b"b2", b"junk", (), 1, 5_000)]
    monkeypatch.setattr(live_source, "balancer_settings", lambda _: BalancerSettings())
    monkeypatch.setattr(live_source, "_load_topics", lambda *_: (loads, tops))
    connection: Any = SimpleNamespace(reporter=Notes())
    document = live_source.loads(connection, live_source.LoadsQuery())
    assert [row["broker"] for row in document["brokers"]] == ["b1", "b2"]
    row = document["brokers"][0]
    assert (row["cpu_percent"], row["memory_percent"], row["msg_throughput_in"]) == (20.0, None, 7.0)
    assert row["logged_at_ms"] == 5_000
    totals = [bundle["msg_throughput_in"] + bundle["msg_throughput_out"] for bundle in document["bundles"]]
    assert len(totals) == 3
    assert totals == sorted(totals, reverse=True)
    assert connection.reporter.sentences == []

    monkeypatch.setattr(live_source, "_load_topics", lambda *_: (None, None))
    document = live_source.loads(connection, live_source.LoadsQuery())
    assert (document["brokers"], document["bundles"]) == ([], [])
    assert "no broker runs the balancer's extension" in connection.reporter.sentences[0]
