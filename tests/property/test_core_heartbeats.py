"""Heartbeats that repeat the one before are not decoded: the table of members is the same as if every one were."""

from __future__ import annotations

from typing import Any

import orjson
from hypothesis import event, given, settings
from hypothesis import strategies as st

from statechannel.engine.membership import HeartbeatForm, Membership, decode_member

BROKERS = ("a", "b", "c")
EXPIRY_S = 6.0

HEARTBEAT = {
    "format": 1,
    "kind": "member",
    "broker": "b",
    "incarnation": "b-1",
    "seq": 1,
    "sent_at_ms": 1_750_000_000_000,
    "started_at_ms": 1_750_000_000_000,
    "listeners": {"pulsar": "pulsar://b:6650"},
    "properties": {},
    "phase": "caught-up",
    "mode": "normal",
    "since": 3,
    "accepting": True,
    "draining": False,
    "leading": False,
    "leaving": False,
    "applied": {"0": 17},
    "expiry_s": 6.0,
}

CHANGES = st.dictionaries(
    st.sampled_from(
        ("phase", "mode", "leading", "deputy", "accepting", "draining", "leaving", "fit", "since", "properties")
    ),
    st.sampled_from(
        ("joining", "caught-up", "normal", "safe", True, False, 7, 99, {"seq": 5}, {"x": '"seq":1,"applied":{'})
    ),
    max_size=2,
)
APPLIED = st.dictionaries(st.sampled_from(("0", "1", "12")), st.integers(-1, 10**15), max_size=3)
ODD_SEQ = b"777"
INJURIES = (
    (b'"seq":', b'"seq":0'),
    (b'"seq":', b'"seq":-'),
    (b'"seq":', b'"seq":1.'),
    (b'"sent_at_ms":', b'"sent_at_ms":0'),
    (b'"applied":{', b'"applied":{,'),
    (b'"applied":{', b'"applied":{"0":01,'),
    (b'"applied":{', b'"applied":{"x":1,'),
    (b'"applied":{', b'"applied":{"0":null,'),
    (b'"applied":{', b'"seq":5,"applied":{'),
    (b'"applied":{', b'"applied":{},"applied":{'),
    (b'"expiry_s"', b'"seq":"text","expiry_s"'),
    (b'"expiry_s"', b'"\\u0073eq":9,"expiry_s"'),
    (b'"expiry_s"', b'"leaving":true,"expiry_s"'),
    (b'"properties":{', b'"properties":{"applied":{"0":1},"seq":1,'),
    (b'},"expiry_s"', b',"x":null},"expiry_s"'),
    (b'},"expiry_s"', b' junk},"expiry_s"'),
    (b'{"format"', b'{"extra":{"seq":777,"sent_at_ms":2},"format"'),
    (b'"expiry_s"', b'"seq":777,"expiry_s"'),
    (b"}", b"}}"),
    (b"}", b""),
    (b":", b": "),
    (b"17", b"12345678901234567890"),
)


def injured(draw: st.DrawFn, value: bytes) -> bytes:
    """The value, or one that only looks like it."""
    if draw(st.integers(0, 3)):
        return value
    before, after = draw(st.sampled_from(INJURIES))
    return value.replace(before, after, 1)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Two heartbeats that differ where those of one process do; both, or one of them, may be odd in the same way."""
    values = [
        orjson.dumps(
            {**HEARTBEAT, "seq": draw(st.integers(0, 99)), "sent_at_ms": draw(st.integers(0, 9)), "applied": applied}
        )
        for applied in (draw(APPLIED), draw(APPLIED))
    ]
    before, after = draw(st.sampled_from(INJURIES))
    first, second = (value.replace(before, after, 1) if draw(st.booleans()) else value for value in values)
    return first, second.replace(ODD_SEQ, b"%d" % draw(st.integers(0, 99)))


@st.composite
def heartbeats(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Key and value: mostly what a broker writes, now and then something that only looks like it."""
    broker = draw(st.sampled_from(BROKERS))
    process = draw(st.sampled_from(("1", "1", "1", "2")))
    changes: dict[str, Any] = draw(st.one_of(st.just({}), st.just({}), CHANGES))
    own = {"broker": broker, "incarnation": f"{broker}-{process}", "seq": draw(st.integers(0, 10**16))}
    if isinstance(changes.get("since", 0), bool) or not isinstance(changes.get("since", 0), int):
        del changes["since"]
    value = injured(draw, orjson.dumps({**HEARTBEAT, **own, "applied": draw(APPLIED), **changes}))
    key = broker if draw(st.integers(0, 9)) else draw(st.sampled_from(BROKERS))
    return key.encode(), value


def state_of(members: Membership) -> dict[str, Any]:
    alive = [
        (
            m.broker,
            m.incarnation,
            m.heard_at_s,
            m.heard_at_ms,
            m.first_offset,
            m.heard_live,
            m.since,
            m.size_bytes,
            m.info,
        )
        for m in members.alive.values()
    ]
    return {"alive": alive, "lost": members.lost, "gone": list(members.gone), "seen": list(members._seen)}


def walked(members: Membership, own: str) -> dict[str, Any]:
    """What is kept over all members, by a walk over all."""
    alive = members.alive
    return {
        "rank": sum(m.caught_up for name, m in alive.items() if name < own),
        "fit_rank": sum(m.fit for name, m in alive.items() if name < own),
        "others_fit": any(m.fit for name, m in alive.items() if name != own),
        "led": any(name != own and (m.leads or (name < own and m.deputizes)) for name, m in alive.items()),
        "counts": [len(alive), sum(m.caught_up for m in alive.values()), sum(m.accepting for m in alive.values())],
    }


def kept(members: Membership, own: str) -> dict[str, Any]:
    counts = members.counts
    return {
        "rank": members.rank(own),
        "fit_rank": members.fit_rank(own),
        "others_fit": members.others_fit(own),
        "led": members.led(own),
        "counts": [counts["alive"], counts["caught_up"], counts["accepting"]],
    }


def steady(info: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in info.items() if name not in ("seq", "sent_at_ms", "applied")}


@settings(max_examples=400)
@given(pairs())
def test_what_repeats_a_heartbeat_is_one_and_differs_by_three_fields(both: tuple[bytes, bytes]) -> None:
    first, second = both
    info = decode_member(first)
    form = None if info is None else HeartbeatForm.of(first, info)
    if info is None or form is None or not form.repeats(second):
        return
    event("repeats")
    again = decode_member(second)
    assert again is not None
    assert steady(again) == steady(info)


@given(st.lists(st.tuples(heartbeats(), st.sampled_from((0.0, 0.5, 3.0, 7.0)), st.booleans()), max_size=25))
def test_the_table_is_that_of_a_reader_that_decodes_all(records: list[tuple[tuple[bytes, bytes], float, bool]]) -> None:
    plain, quick = Membership(EXPIRY_S, remembered_max=4), Membership(EXPIRY_S, remembered_max=4)
    now_s = 100.0
    for offset, ((key, value), later_s, live) in enumerate(records):
        now_s += later_s
        late = {name for name, member in plain.alive.items() if now_s - member.heard_at_s > EXPIRY_S and name != "a"}
        assert {lost.broker for lost in quick.expire(now_s, keep="a-1")} == {
            lost.broker for lost in plain.expire(now_s, keep="a-1")
        }
        assert late - {"a"} <= quick.lost.keys()
        at_ms = round(now_s * 1_000)
        info = decode_member(value)
        if info is not None:
            plain.heard(now_s, offset, at_ms, info, live=live, size_bytes=len(value))
        if quick.heard_again(now_s, at_ms, key, value, live) is None and info is not None:
            form = HeartbeatForm.of(value, info)
            quick.heard(now_s, offset, at_ms, info, live=live, size_bytes=len(value), form=form)
        for own in BROKERS:
            assert kept(quick, own) == walked(quick, own)
        assert state_of(quick) == state_of(plain)


def test_a_heartbeat_that_repeats_the_one_before_is_recognised() -> None:
    members = Membership(EXPIRY_S)
    first = orjson.dumps(HEARTBEAT)
    info = decode_member(first)
    assert info is not None
    assert members.heard_again(1.0, 1_000, b"b", first, True) is None, "nothing is known of it"
    members.heard(1.0, 0, 1_000, info, size_bytes=len(first), form=HeartbeatForm.of(first, info))
    member = members.alive["b"]
    before = member.steady
    own = {"seq": 2, "sent_at_ms": 1_750_000_001_000, "applied": {"0": 18, "1": -1}}
    assert members.heard_again(2.0, 2_000, b"b", orjson.dumps({**HEARTBEAT, **own}), True) is member
    assert (member.heard_at_s, member.heard_at_ms, member.info) == (2.0, 2_000, {**HEARTBEAT, **own})
    assert member.steady is before, "what is kept of owners need not be looked up again"
    assert members.heard_again(3.0, 3_000, b"b", orjson.dumps({**HEARTBEAT, "mode": "safe"}), True) is None
