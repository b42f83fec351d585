"""Patterns of isolation policies: whole texts, in linear time, and what is refused because it would not be either."""

import time

import pytest

from shedders.filters.isolation import Isolation
from shedders.model.cluster import IsolationPolicy
from shedders.model.patterns import LIST_SIZE_MAX, Patterns, compiled


def matches(text: str, *patterns: str) -> bool:
    result = compiled(patterns)
    assert isinstance(result, Patterns), result
    return result.matches(text)


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        (r"shop/orders.*", "shop/orders-eu", "shop/order"),
        (r"shop/.*", "shop/x", "xshop/x"),
        (r"[^/]+/prod-\d{1,3}", "t/prod-12", "t/prod-1234"),
        (r"broker-[0-9]+\.dc1\.example\.com", "broker-7.dc1.example.com", "broker-7xdc1.example.com"),
        (r"(?i)gold/.*", "GOLD/a", "silver/a"),
        (r"a|ab", "ab", "abc"),
        (r"\Qa.b\E/.*", "a.b/c", "axb/c"),
        (r"^t/n$", "t/n", "t/nn"),
        (r"[]x]", "]", "y"),
        (r"[\[x]+", "[x", "y"),
        (r"(?<zone>a)", "a", "b"),
        (r"b{0,3}", "bb", "b{0,3}"),
        (r"[{]\{\Q{\E}", "{{{}", "{{}"),
        (r"\p{Lu}{2}\pL\x{41}", "XYzA", "xyzA"),
        (r"\\0142", "\\0142", "b"),
        (r"[[:alpha:]]+", "abc", "a1"),
    ],
)
def test_patterns_of_upstreams_kind_match_whole_texts(pattern: str, yes: str, no: str) -> None:
    assert (matches(yes, pattern), matches(no, pattern)) == (True, False)
    # Among others they are matched in one go, and mean the same.
    assert (matches(yes, "%", pattern, "%%"), matches(no, "%", pattern, "%%")) == (True, False)


def test_a_name_twice_and_an_open_quotation_are_matched_one_by_one() -> None:
    assert [matches(text, "(?<a>x)", "(?<a>y)") for text in "xyz"] == [True, True, False]
    assert [matches(text, r"\Qx|", "y") for text in ("x|", "y", "x", "x|)|(?:y")] == [True, True, False, False]


def test_no_pattern_matches_nothing_and_half_characters_do_no_harm() -> None:
    assert not matches("t/n")
    assert matches("t/\ud800", "t/.*")
    assert "a lone surrogate" in str(compiled(["\ud800"]))


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        "*",
        "(?=x)a",
        "(?!x)a",
        "(?<=x)a",
        r"(a)\1",
        "a*+",
        "(?>a)",
        "[a-z&&[^b]]",
        "[a-d[m-p]]",
        # Java refuses these, or reads them otherwise.
        "b{,3}",
        "b{x",
        "b{01}",
        "b{1, 2}",
        "(a|{)",
        r"\0142",
        r"[\0142]",
        r"\v",
        r"[a\v]",
        r"\C",
        "(?P<a>x)",
        "(?<a_b>x)",
        r"\p{Greek}",
        r"\p{^L}",
        "((a{100}){100}){100}",
    ],
)
def test_what_is_not_linear_or_means_something_else_is_refused(pattern: str) -> None:
    assert f"`{pattern}` is not a valid regular expression" in str(compiled([pattern]))


def test_the_patterns_of_a_list_are_bounded_together() -> None:
    assert "too large together" in str(compiled([f"((a?){{30}}){{30}}{number}" for number in range(200)]))
    plain = compiled(["t/" + "x" * 96 + str(number % 10) for number in range(1_000)])
    assert isinstance(plain, Patterns) and plain.size < LIST_SIZE_MAX  # noqa: PT018 - the second needs the first


@pytest.mark.parametrize(
    ("patterns", "text"),
    [
        (["t/(a+)+"], "t/" + "a" * 200 + "-"),
        (["t/(a|aa)+", "(.*a){20}"], "t/" + "a" * 250 + "-"),
        ([f"([ab]*a[ab]{{9}}){number}" for number in range(400)], "ab" * 125),
    ],
)
def test_no_pattern_holds_the_loop(patterns: list[str], text: str) -> None:
    policies = (IsolationPolicy("evil", tuple(patterns), ("b1",)),)
    began = time.thread_time()
    zone = Isolation(policies, {}).zone(text)
    assert time.thread_time() - began < 1, "exponential in the text, or nearly so"
    assert zone.policy is None


def test_a_thousand_policies_are_read_once_for_all_clusters() -> None:
    policies = tuple(
        IsolationPolicy(f"p{number}", tuple(f"t/{number}-{part}" for part in range(3)), (f"b{number}",))
        for number in range(1_200)
    )
    first = Isolation(policies, {})
    first.zone("t/zzz")
    began = time.thread_time()
    for _ in range(20):
        assert Isolation(policies, {}).zone("t/zzz") is not None
    assert (time.thread_time() - began) / 20 < 0.02
    assert compiled(policies[0].namespaces) is compiled(list(policies[0].namespaces))
