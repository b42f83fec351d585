"""Isolation: which policy counts, who is primary, secondary or shared, and what a broken pattern breaks."""

from typing import Any

import pytest

from shedders.filters.isolation import Isolation
from shedders.filters.rules import isolated
from shedders.model.cluster import Broker, IsolationPolicy
from shedders.model.patterns import compiled

BROKERS = {name: Broker(name) for name in ("b1:8080", "b2:8080", "b3:8080", "b4:8080")}
NAMES = list(BROKERS)


def policy(name: str, namespaces: Any, primary: Any, secondary: Any = (), least: int = 1) -> IsolationPolicy:
    return IsolationPolicy(name, namespaces, primary, secondary, least)


def allowed(policies: list[IsolationPolicy], namespace: str, names: list[str] | None = None) -> list[str]:
    isolation = Isolation(policies, BROKERS)
    chosen = NAMES if names is None else names
    removed = isolated(isolation, isolation.zone(namespace), chosen)
    return [name.partition(":")[0] for name in chosen if name not in removed]


@pytest.mark.parametrize(
    ("namespace", "expected"),
    [("gold/a", ["b1"]), ("gold/ab", ["b2"]), ("other/a", ["b3", "b4"]), ("xgold/a", ["b3", "b4"])],
)
def test_whole_names_match_and_shared_brokers_are_nobody_s(namespace: str, expected: list[str]) -> None:
    policies = [policy("one", ["gold/."], ["b1"]), policy("two", ["gold/.*"], ["b2"])]
    assert allowed(policies, namespace) == expected


def test_the_first_policy_counts() -> None:
    policies = [policy("one", ["gold/.*"], ["b1"]), policy("two", ["gold/.*"], ["b2"])]
    assert allowed(policies, "gold/a") == ["b1"]
    assert allowed(policies[::-1], "gold/a") == ["b2"]


def test_no_policies_at_all_leave_everybody() -> None:
    assert allowed([], "t/n") == ["b1", "b2", "b3", "b4"]


@pytest.mark.parametrize(
    ("present", "least", "expected"),
    [
        (["b1", "b2", "b3"], 2, ["b1", "b2"]),
        (["b1", "b3"], 2, ["b1", "b3"]),
        (["b1", "b3"], 1, ["b1"]),
        (["b3", "b4"], 1, ["b3"]),
        (["b3", "b4"], 0, []),
        (["b4"], 1, []),
    ],
)
def test_secondaries_help_out_below_min_available(present: list[str], least: int, expected: list[str]) -> None:
    result = policy("gold", ["t/n"], ["b1", "b2"], ["b3", "b2"], least)
    assert allowed([result], "t/n", [f"{name}:8080" for name in present]) == expected


def test_secondaries_stay_shared_for_others() -> None:
    assert allowed([policy("gold", ["t/n"], ["b1"], ["b2"])], "t/other") == ["b2", "b3", "b4"]


@pytest.mark.parametrize(
    ("broker", "host"),
    [
        (Broker("id", web_address="host.example:8080"), "host.example"),
        (Broker("id", web_address="host.example"), "host.example"),
        (Broker("id", web_address="Broker-3.Example.COM:8080"), "broker-3.example.com"),
        (Broker("id", web_address="http://Host.Example:8080/path?q=1:2"), "host.example"),
        (Broker("id", web_address="user:password@host.example:8080"), "host.example"),
        (Broker("id", web_address="[::1]:8080"), "[::1]"),
        (Broker("id", web_address="[FD00::2]"), "[fd00::2]"),
        (Broker("id", web_address="http://[fd00::2]"), "[fd00::2]"),
        (Broker("id", web_address="fd00::2"), "[fd00::2]"),
        (Broker("id", web_address="[half"), "id"),
        (Broker("Id-3"), "Id-3"),
        (Broker("Id-3:8080"), "Id-3"),
        (Broker("fd00::2"), "fd00::2"),
    ],
)
def test_patterns_match_the_whole_host_in_lower_case(broker: Broker, host: str) -> None:
    zone = Isolation([policy("gold", ["t/n"], [rf"\Q{host}\E"])], {broker.name: broker}).zone("t/n")
    assert zone.primary == {broker.name}


@pytest.mark.parametrize(
    ("broken", "namespace", "expected"),
    [
        # What matches before it is read is not touched by it.
        (policy("bad", ["("], ["b2"]), "early/a", ["b1"]),
        (policy("bad", ["("], ["b2"]), "t/n", []),
        (policy("bad", ["t/n"], ["("]), "t/n", []),
        # Without its primaries nobody knows which brokers are shared.
        (policy("bad", ["t/n"], ["("]), "t/other", []),
        (policy("bad", ["t/n"], ["b2"], ["*"]), "t/n", []),
        (policy("bad", ["t/n"], ["b2"], ["*"]), "t/other", ["b3", "b4"]),
        (policy("bad", ["t/n"], []), "t/n", []),
        (policy("bad", "t/n", ["b2"]), "t/n", []),
        (policy("bad", ["t/n"], [7]), "t/n", []),
        (policy("bad", None, ["b2"]), "t/n", []),
        (policy("bad", [["t/n"]], ["b2"]), "t/n", []),
    ],
)
def test_what_cannot_be_read_lets_nobody_through(broken: IsolationPolicy, namespace: str, expected: list[str]) -> None:
    assert allowed([policy("first", ["early/.*"], ["b1"]), broken], namespace) == expected


def test_the_reason_names_policy_and_pattern() -> None:
    isolation = Isolation([policy("bad", ["t/n"], ["b1", "(b2"])], BROKERS)
    why = isolated(isolation, isolation.zone("t/n"), NAMES)["b1:8080"]
    assert "`bad` cannot be read: primary: `(b2` is not a valid regular expression" in why
    assert compiled(["a", "b"]) is compiled(("a", "b")), "each set of patterns is compiled once"
