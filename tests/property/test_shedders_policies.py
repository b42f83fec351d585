"""Whatever lies in the topic of policies: the fold does not care in which order keys come, nor who compacted it, nor when."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from shedders.policies.book import FoldResult, PolicyBook
from shedders.policies.effective import EffectivePolicies, Force
from shedders.policies.kinds import PolicyKind, complete
from shedders.policies.record import PolicyKey, PolicyRecord, decode, decode_key, encode
from statechannel.protocol.side_record import InvalidRecord

K = PolicyKind
VALUES: list[tuple[PolicyKind, str, dict[str, Any]]] = [
    (K.ISOLATION, "gold", {"namespaces": ["t/n"], "primary": ["b1"]}),
    (K.ISOLATION, "gold", {"namespaces": ["t/.*"], "primary": [], "secondary": ["b2"]}),
    (K.PIN, "t/n", {"broker": "b1"}),
    (K.PIN, "t/n", {"broker": "b2"}),
    (K.CORDON, "b1", {}),
    (K.EXCLUDE, "t/n", {}),
    (K.SHEDDING, "cluster", {"on": True}),
    (K.SHEDDING, "cluster", {"on": False}),
    (K.WEIGHTS, "cluster", {"cpu": 3}),
    (K.SETTING, "filters.max_topics", {"value": 5}),
]
TIMES = st.integers(0, 20)
Record = tuple[int, int, bytes | None, bytes | None]


@st.composite
def keys_and_values(draw: st.DrawFn) -> tuple[bytes | None, bytes | None]:
    kind, name, given_value = draw(st.sampled_from(VALUES))
    override = draw(st.booleans())
    key = PolicyKey(kind, name, override)
    what = draw(st.sampled_from(["set", "set", "set", "null", "junk", "nonsense"]))
    if what == "null":
        return key.encode(), None
    if what == "junk":
        return key.encode(), draw(st.binary(max_size=20))
    if what == "nonsense":
        return draw(st.one_of(st.none(), st.binary(max_size=10))), draw(st.one_of(st.none(), st.binary(max_size=10)))
    value = complete(kind, given_value)
    assert isinstance(value, dict)
    until_ms = draw(TIMES) if override else draw(st.one_of(st.none(), TIMES))
    return key.encode(), encode(PolicyRecord(key, value, "ann", draw(st.sampled_from(["", "disk"])), until_ms, 1))


LOGS = st.lists(keys_and_values(), max_size=12).map(
    lambda pairs: [(offset, offset, key, value) for offset, (key, value) in enumerate(pairs)]
)


def read(records: list[Record]) -> PolicyBook:
    book = PolicyBook()
    for record in records:
        book.take(*record)
    return book


def describe_policies(policies: EffectivePolicies) -> tuple[object, ...]:
    """All that depends on what stands; what was dropped or deleted on the way depends on how much was read."""
    return tuple(
        getattr(policies, name) for name in EffectivePolicies.__slots__ if name not in ("junk", "position", "deleted")
    )


@given(LOGS, st.randoms(use_true_random=False), TIMES)
def test_the_order_of_reading_changes_nothing(log: list[Record], random: Any, now_ms: int) -> None:
    shuffled = list(log)
    random.shuffle(shuffled)
    assert describe_policies(read(shuffled).at(now_ms)) == describe_policies(read(log).at(now_ms))


@given(LOGS, TIMES)
def test_a_compacted_log_says_the_same(log: list[Record], now_ms: int) -> None:
    newest = {key: record for record in log if (key := record[2]) is not None}
    kept = [record for record in log if record[2] is not None and newest[record[2]] == record]
    whole = describe_policies(read(log).at(now_ms))
    assert describe_policies(read(kept).at(now_ms)) == whole
    without_nulls = [record for record in kept if record[3] is not None]
    assert describe_policies(read(without_nulls).at(now_ms)) == whole


@given(LOGS, TIMES, st.integers(0, 12))
def test_reading_a_part_again_changes_nothing(log: list[Record], now_ms: int, start: int) -> None:
    assert describe_policies(read([*log, *log[start:]]).at(now_ms)) == describe_policies(read(log).at(now_ms))


@given(LOGS, st.lists(TIMES, min_size=1, max_size=6))
def test_asking_at_other_times_before_changes_nothing(log: list[Record], times: list[int]) -> None:
    book = read(log)
    for now_ms in times:
        assert book.at(now_ms) == read(log).at(now_ms)


@given(LOGS, TIMES)
def test_what_ends_has_ended_then_and_not_before(log: list[Record], now_ms: int) -> None:
    result = read(log).at(now_ms)
    assert all(entry.until_ms is None or entry.until_ms > now_ms for entry in result.entries)
    assert all(broker.until_ms is not None and broker.until_ms <= now_ms for broker in result.lapsed)
    ends = [entry.until_ms for entry in result.entries if entry.until_ms is not None]
    assert result.next_change_ms == min(ends, default=None)
    assert {broker.force for broker in result.lapsed} <= {Force.LAPSED}


@given(LOGS, TIMES)
def test_of_each_name_one_entry_counts(log: list[Record], now_ms: int) -> None:
    counted = [
        (entry.key.kind, entry.key.name)
        for entry in read(log).at(now_ms).entries
        if entry.force in (Force.IN_FORCE, Force.UNREADABLE)
    ]
    assert len(counted) == len(set(counted))


@given(LOGS, TIMES)
def test_nothing_unreadable_is_open(log: list[Record], now_ms: int) -> None:
    result = read(log).at(now_ms)
    unreadable = [entry.key for entry in result.entries if entry.force is Force.UNREADABLE]
    assert len(result.closed) == len(unreadable)
    for key in unreadable:
        match key.kind:
            case K.ISOLATION:
                assert key.name in {policy.name for policy in result.policies.isolation}
            case K.PIN:
                assert key.name in result.policies.pins
            case K.CORDON:
                assert key.name in result.policies.cordons
            case K.EXCLUDE:
                assert key.name in result.policies.excluded
            case _:
                assert not result.shedding_on


@given(st.one_of(st.none(), st.binary(max_size=40)), st.one_of(st.none(), st.binary(max_size=60)))
def test_no_record_raises(key: bytes | None, value: bytes | None) -> None:
    book = PolicyBook()
    assert book.take(0, 0, key, value) in FoldResult
    assert book.at(0).position == 0


@given(keys_and_values())
def test_what_is_decoded_is_encoded_to_the_same(pair: tuple[bytes | None, bytes | None]) -> None:
    key, value = decode_key(pair[0]), pair[1]
    if isinstance(key, InvalidRecord) or value is None:
        return
    record = decode(key, value)
    if not isinstance(record, InvalidRecord):
        assert decode(key, encode(record)) == record
