"""The fold of policies: what stands, what lies over what, what is taken back, and what unreadable records forbid."""

import time
from typing import Any

import pytest

from loaddata.model.broker_load import ResourceWeights
from loaddata.model.bundle_load import BundleAverages, MessageAverage
from shedders.filters.chain import Filters
from shedders.model.cluster import Broker, Bundle, Cluster, IsolationPolicy, Policies
from shedders.policies.book import BookBounds, FoldResult, PolicyBook
from shedders.policies.effective import NOWHERE, EffectivePolicies, Force
from shedders.policies.kinds import PolicyKind, complete
from shedders.policies.record import PolicyRecord, encode, made_key

A = "t/n/0x00000000_0x80000000"
B = "t/m/0x00000000_0xffffffff"
K = PolicyKind


class Log:
    """A book, and the log that it reads."""

    def __init__(self, bounds: BookBounds | None = None) -> None:
        self.book = PolicyBook(bounds)
        self.offset = -1

    def raw(self, key: bytes | None, value: bytes | None) -> FoldResult:
        self.offset += 1
        return self.book.take(self.offset, self.offset * 1_000, key, value)

    def set(self, kind: PolicyKind, name: str, until_ms: int | None = None, **given: Any) -> FoldResult:
        value = complete(kind, given)
        assert isinstance(value, dict), value
        key = made_key(kind, name, override=until_ms is not None)
        return self.raw(key.encode(), encode(PolicyRecord(key, value, "ann", "disk", until_ms, 7)))

    def delete(self, kind: PolicyKind, name: str, *, override: bool = False) -> FoldResult:
        return self.raw(made_key(kind, name, override=override).encode(), None)

    def at(self, now_ms: int = 0) -> EffectivePolicies:
        return self.book.at(now_ms)


@pytest.fixture
def log() -> Log:
    return Log()


def test_nothing_is_laid_down(log: Log) -> None:
    assert log.at() == EffectivePolicies()
    assert log.at().shedding_on


def test_each_kind_has_its_place(log: Log) -> None:
    log.set(K.ISOLATION, "silver", namespaces=["t/m"], primary=["b3"])
    log.set(K.ISOLATION, "gold", namespaces=["t/n"], primary=["b1"], secondary=["b2"], min_available=2)
    log.set(K.ANTI_AFFINITY, "t/n", group="north")
    log.set(K.DOMAIN, "b1", domain="rack-1")
    log.set(K.PIN, A, broker="b1")
    log.set(K.CORDON, "b2")
    log.set(K.EXCLUDE, "t/m")
    log.set(K.QUOTA, A, msg_rate_in=5)
    log.set(K.WEIGHTS, "cluster", cpu=2)
    log.set(K.MANAGER, "cluster", manager="modular")
    log.set(K.UNLOAD_MODE, "cluster", mode="unload")
    log.set(K.SHED_WITH_POLICIES, "cluster", allowed=True)
    log.set(K.SETTING, "parts.filters.max_topics", value=7)
    log.set(K.SHEDDING, "cluster", on=False)
    policies = log.at()
    assert policies.policies == Policies(
        (IsolationPolicy("gold", ("t/n",), ("b1",), ("b2",), 2), IsolationPolicy("silver", ("t/m",), ("b3",))),
        {"t/n": "north"},
        {A: "b1"},
        {"b2": "ann: disk"},
        frozenset({"t/m"}),
    )
    assert policies.domains == {"b1": "rack-1"}
    assert policies.quotas == {A: MessageAverage(5.0, 0.0, 0.0, 0.0, 1_000)}
    assert policies.weights == ResourceWeights(cpu=2.0)
    assert (policies.manager, policies.unload_mode, policies.shed_with_policies) == ("modular", "unload", True)
    assert policies.settings == {"parts.filters.max_topics": 7}
    assert (policies.shedding_on, policies.shedding_why) == (False, "shedding is off (ann: disk)")
    assert (policies.position, policies.junk, policies.closed, policies.lapsed) == (13, {}, (), ())
    assert [entry.key.text for entry in policies.entries] == sorted(entry.key.text for entry in policies.entries)
    assert {(entry.by, entry.why, entry.until_ms, entry.written_at_ms) for entry in policies.entries} == {
        ("ann", "disk", None, 7)
    }
    assert policies.entries[-1].logged_at_ms == policies.entries[-1].offset * 1_000


def test_the_newest_counts_and_null_deletes(log: Log) -> None:
    assert log.set(K.PIN, A, broker="b1") is FoldResult.SET
    assert log.set(K.PIN, A, broker="b2") is FoldResult.SET
    assert log.at().policies.pins == {A: "b2"}
    assert log.delete(K.PIN, A) is FoldResult.DELETED
    assert log.at() == EffectivePolicies(position=2, deleted={made_key(K.PIN, A): 2})


def test_an_older_record_that_comes_late_changes_nothing() -> None:
    key = made_key(K.CORDON, "b1")
    book = PolicyBook()
    assert book.take(5, 0, key.encode(), None) is FoldResult.DELETED
    assert book.take(4, 0, key.encode(), encode(PolicyRecord(key, {}, "ann"))) is FoldResult.OLDER
    assert book.take(3, 0, key.encode(), b"junk") is FoldResult.OLDER
    assert book.at(0) == EffectivePolicies(position=5, deleted={key: 5})


def test_an_override_lies_over_the_standing_policy_and_is_taken_back_by_itself(log: Log) -> None:
    """Standing: A on b1. Until 2,000: A on b2. At 2,000 it is on b1 again, without a record."""
    log.set(K.PIN, A, broker="b1")
    log.set(K.PIN, A, broker="b2", until_ms=2_000)
    before, at_end = log.at(1_999), log.at(2_000)
    assert before.policies.pins == {A: "b2"}
    assert before.next_change_ms == 2_000
    assert [item.force for item in before.find(K.PIN, A)] == [Force.IN_FORCE, Force.OVERRIDDEN]
    assert at_end.policies.pins == {A: "b1"}
    assert at_end.next_change_ms is None
    assert [item.force for item in at_end.find(K.PIN, A)] == [Force.IN_FORCE, Force.LAPSED]
    assert [broker.until_ms for broker in at_end.lapsed] == [2_000]
    assert log.at(1_000).policies.pins == {A: "b2"}  # an estimate of time may go back


def test_an_override_alone_leaves_nothing_behind(log: Log) -> None:
    log.set(K.SHEDDING, "cluster", on=False, until_ms=2_000)
    assert not log.at(0).shedding_on
    assert log.at(2_000).shedding_on


def test_a_standing_policy_is_changed_below_an_override(log: Log) -> None:
    log.set(K.PIN, A, broker="b2", until_ms=2_000)
    log.set(K.PIN, A, broker="b3")
    assert log.at(0).policies.pins == {A: "b2"}
    assert log.at(2_000).policies.pins == {A: "b3"}
    log.delete(K.PIN, A, override=True)
    assert log.at(0).policies.pins == {A: "b3"}


def test_an_override_can_switch_on_what_stands_off(log: Log) -> None:
    log.set(K.SHEDDING, "cluster", on=False)
    log.set(K.SHEDDING, "cluster", on=True, until_ms=2_000)
    assert log.at(0).shedding_on
    assert not log.at(2_000).shedding_on


def test_the_same_object_until_something_changes(log: Log) -> None:
    log.set(K.CORDON, "b1", until_ms=2_000)
    first = log.at(500)
    assert log.at(1_999) is first
    second = log.at(2_000)
    assert second is not first
    assert log.at(10**12) is second
    log.set(K.CORDON, "b2")
    assert log.at(10**12) is not second


@pytest.mark.parametrize(
    ("key", "reason"), [(None, "key"), (b"nonsense", "key"), (b"pinned/t/n", "unknown-kind"), (b"pin/n", "name")]
)
def test_records_without_a_meaning_are_counted_and_say_nothing(log: Log, key: bytes | None, reason: str) -> None:
    log.set(K.CORDON, "b1")
    assert log.raw(key, b"{}") is FoldResult.JUNK
    assert log.raw(key, None) is FoldResult.JUNK
    policies = log.at()
    assert policies.junk == {reason: 2}
    assert policies.closed == ()
    assert policies.policies.cordons == {"b1": "ann: disk"}
    assert "offset 2" in log.book.last_junk


@pytest.mark.parametrize("junk", [b"", b"\xff", b"{}", b'{"format":2}', b"[" * 10_000])
def test_an_unreadable_record_never_opens_what_its_key_names(log: Log, junk: bytes) -> None:
    log.set(K.CORDON, "b1")
    log.set(K.EXCLUDE, "t/n")
    log.set(K.SHEDDING, "cluster", on=False)
    for key in (b"cordon/b1", b"exclude/t/n", b"shedding/cluster"):
        assert log.raw(key, junk) is FoldResult.JUNK
    policies = log.at()
    assert policies.policies.cordons.keys() == {"b1"}
    assert policies.policies.excluded == {"t/n"}
    assert not policies.shedding_on
    assert len(policies.closed) == 3
    assert sum(policies.junk.values()) == 3
    assert [entry.force for entry in policies.entries] == [Force.UNREADABLE] * 3
    log.set(K.SHEDDING, "cluster", on=True)
    log.delete(K.CORDON, "b1")
    log.delete(K.EXCLUDE, "t/n")
    assert log.at().shedding_on
    assert (log.at().closed, log.at().entries[0].force) == ((), Force.IN_FORCE)


def place(policies: EffectivePolicies, bundle: str) -> list[str]:
    cluster = Cluster({name: Broker(name) for name in ("b1", "b2", "b3")}, {name: Bundle(name) for name in (A, B)})
    over = policies.over(cluster)
    return list(Filters(over).passed(over.bundles[bundle]).names)


def test_an_unreadable_isolation_policy_gives_nobody_what_it_may_speak_of(log: Log) -> None:
    log.set(K.ISOLATION, "a-first", namespaces=["t/n"], primary=["b1"])
    assert place(log.at(), A) == ["b1"]
    assert place(log.at(), B) == ["b2", "b3"]
    log.raw(b"isolation/gold", b"{}")
    assert place(log.at(), A) == ["b1"]  # an earlier policy speaks of it
    assert place(log.at(), B) == []
    assert "bundles that it may apply to get no broker" in log.at().closed[0]


def test_an_unreadable_pin_gives_nobody_what_it_pins(log: Log) -> None:
    log.raw(b"pin/t/n", b"{}")
    assert log.at().policies.pins == {"t/n": NOWHERE}
    assert place(log.at(), A) == []
    assert place(log.at(), B) == ["b1", "b2", "b3"]


@pytest.mark.parametrize(
    "key",
    [
        b"domain/b1",
        b"weights/cluster",
        b"manager/cluster",
        b"shedding/cluster",
        b"unload-mode/cluster",
        b"shed-bundles-with-policies/cluster",
        b"setting/profile",
        b"override/setting/profile",
    ],
)
def test_what_steers_moves_and_cannot_be_read_stops_them(log: Log, key: bytes) -> None:
    log.raw(key, b"{}")
    policies = log.at()
    assert not policies.shedding_on
    assert key.decode() in policies.shedding_why
    assert policies.closed[0].endswith("no bundle is moved automatically")


@pytest.mark.parametrize("key", [b"anti-affinity/t/n", f"quota/{A}".encode()])
def test_a_namespace_of_which_something_cannot_be_read_is_not_shed(log: Log, key: bytes) -> None:
    log.raw(key, b"{}")
    assert log.at().policies.excluded == {"t/n"}
    assert log.at().shedding_on


def test_an_override_mends_what_cannot_be_read_for_a_while(log: Log) -> None:
    log.raw(b"pin/t/n", b"{}")
    log.set(K.PIN, "t/n", broker="b2", until_ms=2_000)
    assert log.at(0).policies.pins == {"t/n": "b2"}
    assert log.at(0).closed == ()
    assert log.at(2_000).policies.pins == {"t/n": NOWHERE}


def test_over_a_cluster(log: Log) -> None:
    log.set(K.DOMAIN, "b1", domain="rack-1")
    log.set(K.QUOTA, A, msg_rate_in=5)
    log.set(K.CORDON, "b1")
    quota = MessageAverage(5.0, 0.0, 0.0, 0.0, 1_000)
    plain = Cluster({"b1": Broker("b1", domain="own"), "b2": Broker("b2", domain="own")}, {A: Bundle(A), B: Bundle(B)})
    result = log.at().over(plain)
    assert {name: broker.domain for name, broker in result.brokers.items()} == {"b1": "rack-1", "b2": "own"}
    assert result.bundles[A].averages == BundleAverages(quota, quota)
    assert result.bundles[B] == plain.bundles[B]
    assert result.policies.cordons.keys() == {"b1"}


def test_contradictions_are_told(log: Log) -> None:
    log.set(K.PIN, A, broker="b1")
    log.set(K.CORDON, "b1")
    cluster = Cluster({"b1": Broker("b1"), "b2": Broker("b2")}, {A: Bundle(A)})
    contradictions = log.at().contradictions(cluster)
    assert [(contradiction.kind, contradiction.policies, contradiction.blocks) for contradiction in contradictions] == [
        ("nobody", (f"pin {A} -> b1", "cordon b1"), True)
    ]


def test_entries_as_json(log: Log) -> None:
    log.set(K.PIN, A, broker="b1", until_ms=2_000)
    assert log.at(0).entries[0].fields() == {
        "kind": "pin",
        "name": A,
        "override": True,
        "state": "in-force",
        "value": {"broker": "b1"},
        "by": "ann",
        "drain": None,
        "why": "disk",
        "until_ms": 2_000,
        "written_at_ms": 7,
        "logged_at_ms": 0,
        "offset": 0,
        "trouble": None,
    }


def test_settings_by_their_short_names_count_as_what_they_mean(log: Log) -> None:
    log.set(K.SETTING, "filters.max_topics", value=5)
    assert log.at().settings == {"parts.filters.max_topics": 5}
    log.set(K.SETTING, "parts.filters.max_topics", value=7)
    assert log.at().settings == {"parts.filters.max_topics": 7}


# --- many of them ---------------------------------------------------------------------------------------------------


def test_one_record_among_ten_thousand_costs_little() -> None:
    log = Log(BookBounds(policies_max=20_000))
    for number in range(9_990):
        log.set(K.PIN, f"t/n{number}", broker="b1")
    assert len(log.at().policies.pins) == 9_990
    took_s = []
    for number in range(5):
        log.set(K.CORDON, f"b{number}")
        began = time.thread_time()
        assert len(log.at().policies.cordons) == number + 1
        took_s.append(time.thread_time() - began)
    assert min(took_s) < 0.1


def test_beyond_the_bound_nothing_is_moved_and_what_was_known_goes_on() -> None:
    log = Log(BookBounds(policies_max=2))
    log.set(K.PIN, "t/a", broker="b1")
    log.set(K.CORDON, "b1")
    assert (log.at().overfull, log.at().shedding_on, log.book.has_room) == ("", True, False)
    assert log.set(K.CORDON, "b2") is FoldResult.NO_ROOM
    policies = log.at()
    assert "more policies than this broker can hold (2" in policies.overfull
    assert (policies.shedding_on, policies.shedding_why, policies.position) == (False, policies.overfull, 2)
    assert log.set(K.PIN, "t/a", broker="b2") is FoldResult.SET
    assert (log.at().policies.pins, list(log.at().policies.cordons)) == ({"t/a": "b2"}, ["b1"])
    log.delete(K.CORDON, "b1")
    assert log.book.has_room
    assert log.at().overfull, "what was dropped is not known by that"


def test_records_are_bounded_by_their_size_and_that_of_their_patterns() -> None:
    log = Log(BookBounds(bytes_max=12_000))
    assert log.set(K.ISOLATION, "a", namespaces=["t/[a-z]{200}"], primary=["b1"]) is FoldResult.SET
    assert log.set(K.ISOLATION, "b", namespaces=["t/([a-z]{20}){40}"], primary=["b1"]) is FoldResult.NO_ROOM
    assert log.at().overfull
    # A key that is known holds no longer what it held before.
    assert log.set(K.ISOLATION, "a", namespaces=["t/([a-z]{20}){40}"], primary=["b1"]) is FoldResult.JUNK
    assert [(entry.key.name, entry.force) for entry in log.at().entries] == [("a", Force.UNREADABLE)]


def test_what_was_deleted_is_remembered_within_the_bound() -> None:
    log = Log(BookBounds(policies_max=3))
    for number in range(10):
        log.set(K.CORDON, f"b{number}")
        log.delete(K.CORDON, f"b{number}")
    assert [key.name for key in log.at().deleted] == ["b7", "b8", "b9"]
    assert (len(log.book), log.at().overfull) == (0, "")


def test_a_part_is_worked_out_anew_when_it_lapses_and_when_time_is_turned_back(log: Log) -> None:
    log.set(K.CORDON, "b1", until_ms=50)
    log.set(K.CORDON, "b2", until_ms=100)
    for now_ms, expected in (
        (0, ["b1", "b2"]),
        (60, ["b2"]),
        (100, []),
        (60, ["b2"]),
        (10, ["b1", "b2"]),
        (99, ["b2"]),
    ):
        assert sorted(log.at(now_ms).policies.cordons) == expected
