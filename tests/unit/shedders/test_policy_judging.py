"""What a policy that is written or deleted does to bundles, told before it is done."""

import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from shedders.cli.policy import write
from shedders.cli.policy.write import judged, matters
from shedders.model.cluster import Broker, Bundle, Cluster
from shedders.policies.book import PolicyBook
from shedders.policies.kinds import BadPolicyError, PolicyKind
from shedders.policies.record import PolicyKey, PolicyRecord, encode, made_key
from shedders.policies.topic import PolicyWritten
from statechannel.cli.kit.failures import CommandError
from statechannel.errors import NotFoundError
from statechannel.operations.outcomes import Answer

A = "t/n/0x00000000_0x80000000"
CLUSTER = Cluster({name: Broker(name) for name in ("b1", "b2")}, {A: Bundle(A, "b2")})


class Laid:
    """Policies that stand, and what is said of the next one."""

    def __init__(self) -> None:
        self.book = PolicyBook()

    def _take(self, key: PolicyKey, value: bytes | None, *, force: bool) -> list[str]:
        before = self.book.at(0)
        self.book.take(self.book.position + 1, 0, key.encode(), value)
        if not matters(key, deleted=value is None):
            return []
        result = judged(key, before, self.book.at(0), CLUSTER, deleted=value is None, force=force)
        return [*result.troubles, *result.notes]

    def set(self, kind: PolicyKind, name: str, *, force: bool = False, **value: Any) -> list[str]:
        key = made_key(kind, name)
        return self._take(key, encode(PolicyRecord(key, value, "ann")), force=force)

    def isolation(self, name: str, namespaces: str, *primary: str, force: bool = False) -> list[str]:
        value = {"namespaces": [namespaces], "primary": list(primary), "secondary": [], "min_available": 1}
        return self.set(PolicyKind.ISOLATION, name, force=force, **value)

    def delete(self, kind: PolicyKind, name: str, *, force: bool = False) -> list[str]:
        return self._take(made_key(kind, name), None, force=force)


@pytest.fixture
def laid() -> Laid:
    return Laid()


def test_to_delete_is_refused_where_nobody_is_left_unless_one_insists(laid: Laid) -> None:
    assert laid.isolation("orders", "t/n", "b1") == []
    assert laid.isolation("others", "u/.*", "b[12]") == []
    with pytest.raises(CommandError, match=r"contradict each other: .*no broker may take") as caught:
        laid.delete(PolicyKind.ISOLATION, "orders")
    assert "--force deletes it" in caught.value.hint
    assert laid.isolation("orders", "t/n", "b1") == []
    [said] = laid.delete(PolicyKind.ISOLATION, "orders", force=True)
    assert "no broker may take" in said


def test_to_delete_what_hinders_nobody_is_silent(laid: Laid) -> None:
    laid.isolation("orders", "t/n", "b1")
    assert laid.delete(PolicyKind.ISOLATION, "orders") == []
    assert not matters(made_key(PolicyKind.CORDON, "b1"), deleted=True)
    assert matters(made_key(PolicyKind.CORDON, "b1"), deleted=False)


def test_a_pattern_that_no_broker_matches_is_noted(laid: Laid) -> None:
    assert laid.isolation("zero", "u/later", "b9") == ["no known broker matches primary=b9 of isolation zero"]
    assert laid.isolation("zero", "u/later", "b9", "b1") == []


def test_a_list_in_one_pattern_and_upper_case_are_named_with_what_to_write(laid: Laid) -> None:
    with pytest.raises(CommandError) as caught:
        laid.isolation("zero", "t/n", "b1,b2")
    assert "b1|b2" in caught.value.hint
    assert any("b1|b2" in said for said in laid.isolation("zero", "t/n", "b1,b2", force=True))
    assert any("`b1`" in said for said in laid.isolation("zero", "u/n", "B1"))
    assert laid.isolation("zero", "u/n", "b{0,1}1") == []


def test_a_policy_that_is_never_come_to_is_noted(laid: Laid) -> None:
    assert laid.isolation("b", "t/n", "b2") == []
    said = ["isolation b is never used: isolation a comes before it and has the same namespaces"]
    assert laid.isolation("a", "t/n", "b2") == said
    assert laid.isolation("b", "t/n", "b[12]") == said
    assert laid.isolation("c", "u/n", "b1") == []


def test_a_pin_to_another_broker_says_that_it_moves_nothing(laid: Laid) -> None:
    by_hand = "a pin does not move bundles; use statechannel transfer"
    assert laid.set(PolicyKind.PIN, A, broker="b1") == [f"it is on b2; {by_hand} {A} --dest b1"]
    assert laid.set(PolicyKind.PIN, A, broker="b2") == []
    assert laid.set(PolicyKind.PIN, "t/n", broker="b1") == [], "its own pin stands over that"
    assert laid.delete(PolicyKind.PIN, A) == []
    said = laid.set(PolicyKind.PIN, "t/n", broker="b1")
    assert said == [f"1 bundle of it is on another broker; {by_hand} BUNDLE --dest b1"]


@pytest.mark.parametrize("kind", [PolicyKind.PIN, PolicyKind.QUOTA])
@pytest.mark.parametrize("brokers", [True, False])
def test_a_bundle_that_does_not_exist_is_refused_unless_one_insists(
    laid: Laid, kind: PolicyKind, brokers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while no broker is alive; and what is left of a bundle that was split can be deleted."""
    if not brokers:
        monkeypatch.setattr(sys.modules[__name__], "CLUSTER", Cluster({}, CLUSTER.bundles))
    missing = "t/n/0x00000000_0x70000000"
    value = {"broker": "b1"} if kind is PolicyKind.PIN else {"msg_rate_in": 1.0}
    with pytest.raises(NotFoundError) as caught:
        laid.set(kind, missing, **value)
    assert "statechannel bundles --namespace t/n" in caught.value.hint
    assert "--force" in caught.value.hint
    laid.set(kind, missing, force=True, **value)
    laid.delete(kind, missing)
    laid.set(kind, A, **value)


def test_nothing_is_deleted_that_is_refused(laid: Laid, monkeypatch: pytest.MonkeyPatch) -> None:
    laid.isolation("orders", "t/n", "b1")
    laid.isolation("others", "u/.*", "b[12]")
    deleted: list[PolicyKey] = []

    def delete(_: object, __: object, key: PolicyKey, record: object, **___: object) -> PolicyWritten:
        assert record is None
        deleted.append(key)
        return PolicyWritten(Answer.ACCEPTED, "")

    monkeypatch.setattr(write, "book_of", lambda *_: laid.book)
    monkeypatch.setattr(write, "live_cluster", lambda _: CLUSTER)
    monkeypatch.setattr(write, "topic_of", lambda _: None)
    monkeypatch.setattr(write, "naming_address", lambda _: nullcontext())
    monkeypatch.setattr(write, "write_policy", delete)
    connection: Any = SimpleNamespace(client=None, timeout_s=1.0)
    key = made_key(PolicyKind.ISOLATION, "orders")
    with pytest.raises(CommandError):
        write.take_away(connection, key, force=False)
    assert deleted == []
    laid.isolation("orders", "t/n", "b1")
    assert len(write.take_away(connection, key, force=True).judged.troubles) == 1
    assert deleted == [key]


def test_a_person_cannot_write_in_the_name_of_a_drain() -> None:
    connection: Any = SimpleNamespace()
    with pytest.raises(BadPolicyError, match="reserved"):
        write.put(
            connection,
            made_key(PolicyKind.CORDON, "b1"),
            {},
            by="system:drain/01OP/ann",
            why="",
            until_ms=None,
            force=True,
        )
