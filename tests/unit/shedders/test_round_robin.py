"""RoundRobinBrokerSelector: turns by hand, ours and upstream's."""

from shedders.placement.round_robin import RoundRobin, RoundRobinSettings
from tests.support.loads import bundle, cluster

NOTHING = cluster([], [])
NEW = bundle(1, None)


def turns(*candidates: str, memory=None, upstream: bool = False) -> tuple[str, dict]:
    strategy = RoundRobin(RoundRobinSettings(upstream=upstream))
    memory, result = memory or {}, ""
    for names in candidates:
        answer = strategy.place(NOTHING, NEW, list(names), {}, memory)
        memory, result = dict(answer.memory), result + (answer.broker or "-")
    return result, memory


def test_worked_example():
    assert turns("abc", "abc", "abc", "bc", "abc")[0] == "abcbc"


def test_each_has_its_turn_whatever_the_sets_are():
    # Two sets by turns: upstream's counter gives the larger set's places 0 and 2 only.
    sets = ["abcd", "xy"] * 4
    assert turns(*sets, upstream=True)[0] == "aycyaycy"
    assert turns(*["abcd"] * 5)[0] == "abcda"


def test_one_that_left_and_one_that_came():
    assert turns("abc", "ac", "abcd")[0] == "aca"[:2] + "d"


def test_nobody():
    assert turns("", "ab", "", "ab")[0] == "-a-b"
    assert turns("", "ab", "", "ab", upstream=True)[0] == "-a-b"


def test_upstreams_counter_goes_round():
    result, memory = turns("abc", "abc", memory={"count": 2**31 - 1}, upstream=True)
    # 2,147,483,647 mod 3 is 1.
    assert (result, memory["count"]) == ("ba", 1)


def test_upstream_keeps_the_order_first_seen():
    memory = {"count": 0, "order": ["c", "a", "b"]}
    assert turns("abc", "abc", "abc", memory=memory, upstream=True)[0] == "cab"
    # Another number of candidates, or one picked that is none: a new order.
    assert turns("ab", "ab", memory=memory, upstream=True)[0] == "ab"
    assert turns("abx", "abx", memory=memory, upstream=True)[0] == "ab"


def test_memory_that_is_no_memory_is_forgotten():
    for memory in ({"last": 3}, {"count": "x", "order": "abc"}, {"count": -1, "order": 5}):
        assert turns("abc", memory=memory)[0] == "a"
        assert turns("abc", memory=memory, upstream=True)[0] == "a"
