"""Policy records: what is written is read back, everything else is refused with a reason."""

from typing import Any

import orjson
import pytest

from shedders.policies.kinds import RULES, BadPolicyError, PolicyKind, kind_of, name_and_words, usage, value_from
from shedders.policies.record import (
    VALUE_MAX_BYTES,
    InvalidPolicyReason,
    PolicyKey,
    PolicyRecord,
    decode,
    decode_key,
    encode,
    made_key,
)

BUNDLE = "t/n/0x00000000_0x80000000"
K = PolicyKind
NO_RATES = {"msg_rate_in": 0.0, "msg_rate_out": 0.0, "msg_throughput_in": 0.0, "msg_throughput_out": 0.0}
ALL: list[tuple[PolicyKind, str, dict[str, Any]]] = [
    (K.ISOLATION, "gold", {"namespaces": ["t/gold.*"], "primary": ["b[12]"], "secondary": [], "min_available": 1}),
    (K.ANTI_AFFINITY, "t/n", {"group": "north"}),
    (K.DOMAIN, "b1", {"domain": "rack-1"}),
    (K.PIN, BUNDLE, {"broker": "b1"}),
    (K.PIN, "t/n", {"broker": "b1:8080"}),
    (K.CORDON, "b1", {}),
    (K.EXCLUDE, "t/n", {}),
    (K.QUOTA, BUNDLE, {**NO_RATES, "msg_rate_in": 5.5}),
    (
        K.WEIGHTS,
        "cluster",
        {"cpu": 2.0, "memory": 0.0, "direct_memory": 0.0, "bandwidth_in": 1.0, "bandwidth_out": 1.0},
    ),
    (K.MANAGER, "cluster", {"manager": "modular"}),
    (K.SHEDDING, "cluster", {"on": False}),
    (K.UNLOAD_MODE, "cluster", {"mode": "unload"}),
    (K.SHED_WITH_POLICIES, "cluster", {"allowed": True}),
    (K.SETTING, "shedding.threshold.threshold_percent", {"value": 12.5}),
    (K.SETTING, "profile", {"value": "production"}),
]


def test_every_kind_is_tried() -> None:
    assert {kind for kind, _, _ in ALL} == set(PolicyKind) == set(RULES)


@pytest.mark.parametrize(("kind", "name", "value"), ALL)
@pytest.mark.parametrize("override", [False, True])
def test_what_is_written_is_read_back(kind: PolicyKind, name: str, value: dict[str, Any], override: bool) -> None:
    key = made_key(kind, name, override=override)
    record = PolicyRecord(key, value, "ann@host", "why", 5_000 if override else None, 1_000)
    raw = encode(record)
    assert decode_key(key.encode()) == key
    assert decode(key, raw) == record
    assert orjson.loads(raw)["kind"] == kind


def test_the_bytes_of_the_page() -> None:
    """A record as design/policies.md shows it."""
    key = PolicyKey(K.PIN, "t/n", True)
    record = PolicyRecord(key, {"broker": "b3"}, "ann@desk", "disk of b1", 1_750_000_900_000, 1_750_000_000_000)
    assert key.encode() == b"override/pin/t/n"
    assert encode(record) == (
        b'{"format":1,"kind":"pin","name":"t/n","broker":"b3","by":"ann@desk","why":"disk of b1",'
        b'"until_ms":1750000900000,"written_at_ms":1750000000000}'
    )


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        (None, InvalidPolicyReason.KEY),
        (b"", InvalidPolicyReason.KEY),
        (b"pin", InvalidPolicyReason.KEY),
        (b"override/pin", InvalidPolicyReason.KEY),
        (b"\xff/b1", InvalidPolicyReason.KEY),
        (b"cordon/" + b"b" * 2_000, InvalidPolicyReason.KEY),
        (b"pins/t/n", InvalidPolicyReason.UNKNOWN_KIND),
        (b"/t/n", InvalidPolicyReason.UNKNOWN_KIND),
        (b"override/override/pin/t/n", InvalidPolicyReason.UNKNOWN_KIND),
        (b"pin/t", InvalidPolicyReason.NAME),
        (b"pin/t/n/0x0_0x1", InvalidPolicyReason.NAME),
        (b"cordon/b 1", InvalidPolicyReason.NAME),
        (b"shedding/everything", InvalidPolicyReason.NAME),
        (b"setting/a..b", InvalidPolicyReason.NAME),
        (b"isolation/", InvalidPolicyReason.NAME),
    ],
)
def test_bad_keys(key: bytes | None, reason: InvalidPolicyReason) -> None:
    result = decode_key(key)
    assert result.reason is reason


GOOD = {
    "format": 1,
    "kind": "isolation",
    "name": "gold",
    "namespaces": ["t/n"],
    "primary": ["b1"],
    "by": "ann",
    "why": "",
    "until_ms": None,
    "written_at_ms": 1,
}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"format": 2}, InvalidPolicyReason.FORMAT),
        ({"format": True}, InvalidPolicyReason.FORMAT),
        ({"kind": "pin"}, InvalidPolicyReason.MISMATCH),
        ({"name": "silver"}, InvalidPolicyReason.MISMATCH),
        ({"by": ""}, InvalidPolicyReason.HEADER),
        ({"by": 7}, InvalidPolicyReason.HEADER),
        ({"why": None}, InvalidPolicyReason.HEADER),
        ({"why": "w" * 1_001}, InvalidPolicyReason.HEADER),
        ({"until_ms": "soon"}, InvalidPolicyReason.HEADER),
        ({"until_ms": -1}, InvalidPolicyReason.HEADER),
        ({"until_ms": 1.5}, InvalidPolicyReason.HEADER),
        ({"written_at_ms": None}, InvalidPolicyReason.HEADER),
        ({"written_at_ms": 10**16}, InvalidPolicyReason.HEADER),
        ({"namespaces": []}, InvalidPolicyReason.FIELDS),
        ({"namespaces": "t/n"}, InvalidPolicyReason.FIELDS),
        ({"namespaces": ["("]}, InvalidPolicyReason.FIELDS),
        ({"namespaces": [1]}, InvalidPolicyReason.FIELDS),
        ({"namespaces": [""]}, InvalidPolicyReason.FIELDS),
        ({"primary": []}, InvalidPolicyReason.FIELDS),
        ({"primary": ["*"]}, InvalidPolicyReason.FIELDS),
        ({"min_available": -1}, InvalidPolicyReason.FIELDS),
        ({"min_available": True}, InvalidPolicyReason.FIELDS),
        ({"min_available": 1.5}, InvalidPolicyReason.FIELDS),
        ({"later": 1}, InvalidPolicyReason.FIELDS),
    ],
)
def test_bad_values(change: dict[str, Any], reason: InvalidPolicyReason) -> None:
    key = PolicyKey(K.ISOLATION, "gold")
    assert isinstance(decode(key, orjson.dumps(GOOD)), PolicyRecord)
    record = decode(key, orjson.dumps({**GOOD, **change}))
    assert record.reason is reason
    assert record.why


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", InvalidPolicyReason.NOT_JSON),
        (b"[1]", InvalidPolicyReason.NOT_JSON),
        (b"\xff", InvalidPolicyReason.NOT_JSON),
        (b"[" * 5_000, InvalidPolicyReason.NOT_JSON),
        (b'{"format":1,"until_ms":NaN}', InvalidPolicyReason.NOT_JSON),
        (b" " * (VALUE_MAX_BYTES + 1), InvalidPolicyReason.TOO_LARGE),
    ],
)
def test_values_that_are_no_record(value: bytes, reason: InvalidPolicyReason) -> None:
    record = decode(PolicyKey(K.ISOLATION, "gold"), value)
    assert record.reason is reason


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (K.QUOTA, BUNDLE, {"msg_rate_in": -1.0}),
        (K.QUOTA, BUNDLE, {"msg_rate_in": float("nan")}),
        (K.QUOTA, BUNDLE, {"msg_rate_in": float("inf")}),
        (K.WEIGHTS, "cluster", {"cpu": 101}),
        (K.MANAGER, "cluster", {"manager": "older"}),
        (K.SHEDDING, "cluster", {"on": "off"}),
        (K.SHEDDING, "cluster", {"on": 0}),
        (K.UNLOAD_MODE, "cluster", {"mode": None}),
        (K.ANTI_AFFINITY, "t/n", {"group": "  "}),
        (K.DOMAIN, "b1", {"domain": "a\x1b[0m"}),
        (K.PIN, "t/n", {"broker": "a b"}),
        (K.PIN, "t/n", {}),
        (K.CORDON, "b1", {"why": "clash"}),
        (K.SETTING, "profile", {"value": [[[[[[[[[[1]]]]]]]]]]}),
        (K.DOMAIN, "b1", {"domain": "\ud800"}),
    ],
)
def test_what_could_not_be_read_back_is_not_written(kind: PolicyKind, name: str, value: dict[str, Any]) -> None:
    with pytest.raises(BadPolicyError):
        encode(PolicyRecord(made_key(kind, name), value, "ann", "", None, 1))


def test_an_override_needs_an_end() -> None:
    record = PolicyRecord(PolicyKey(K.PIN, "t/n", True), {"broker": "b1"}, "ann", "", None, 1)
    with pytest.raises(BadPolicyError, match="until_ms"):
        encode(record)


def meant(words: list[str]) -> dict[str, Any]:
    kind = kind_of(words[0])
    _, rest = name_and_words(kind, words[1:])
    return value_from(kind, rest)


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["isolation", "gold", "namespaces=t/a", "primary=b[12]{1,2}", "namespaces=t/b"], ["t/a", "t/b"]),
        (["isolation", "gold", 'namespaces=["t/a", "t/b"]', "primary=b1"], ["t/a", "t/b"]),
        (["isolation", "gold", "namespaces=[a-z]+/x", "primary=b1"], ["[a-z]+/x"]),
    ],
)
def test_patterns_as_people_write_them(words: list[str], value: list[str]) -> None:
    kind = kind_of(words[0])
    name, rest = name_and_words(kind, words[1:])
    assert (name, value_from(kind, rest)["namespaces"]) == ("gold", value)


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["pin", "t/n", "b1"], {"broker": "b1"}),
        (["pin", "t/n", "broker=b1"], {"broker": "b1"}),
        (["shedding", "off"], {"on": False}),
        (["shedding", "cluster", "on"], {"on": True}),
        (["unload-mode", "unload"], {"mode": "unload"}),
        (["cordon", "b1"], {}),
        (["quota", BUNDLE, "msg_rate_in=10"], {**NO_RATES, "msg_rate_in": 10}),
        (["setting", "filters.max_topics", "100"], {"value": 100}),
        (["setting", "x.y", "none"], {"value": None}),
        (["setting", "x.y", "a=b"], {"value": "a=b"}),
        (["setting", "x.y", "[1, 2]"], {"value": [1, 2]}),
        (["setting", "x.y", "[a"], {"value": "[a"}),
    ],
)
def test_values_as_people_write_them(words: list[str], value: dict[str, Any]) -> None:
    assert meant(words) == value


@pytest.mark.parametrize("kind", PolicyKind)
def test_every_kind_says_how_it_is_written(kind: PolicyKind) -> None:
    assert usage(kind).startswith(f"Use: statechannel policy set {kind}")
