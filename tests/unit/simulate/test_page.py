"""The page of the contest: one document, nothing from elsewhere, all runs in it, small enough."""

import html
import html.parser
import re

import pytest

from shedders.contest.comparison import compared
from shedders.contest.outcome import ContestRun, RunOutcome, RunResult, TraceSource
from shedders.contest.page import page
from shedders.contest.recommendation import recommended
from tests.support.browsers import browser_or_skip, running_browser, shown
from tests.support.contest_runs import contender, failed, field_of, ran, source

FETCHING = {"src", "srcset", "href", "xlink:href", "data", "poster", "action", "formaction", "background", "ping"}
VOID = {"meta", "link", "input", "br", "img", "hr"}


class Reader(html.parser.HTMLParser):
    """Elements, what they refer to, and names."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.references: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.words: list[str] = []
        self.wrong: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.references += [value or "" for name, value in attributes if name in FETCHING]
        self.ids += [value or "" for name, value in attributes if name == "id"]
        if tag not in VOID:
            self.opened.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.opened.pop()

    def handle_endtag(self, tag):
        if not self.opened or self.opened.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data):
        self.words.append(data)


def outcomes(runs: list[RunResult], seed: int = 1) -> list[RunOutcome]:
    return [run.outcome for run in runs if run.outcome is not None and run.run.seed == seed]


@pytest.fixture(scope="module")
def drawn_page() -> tuple[str, Reader]:
    runs = [*field_of(of=source("calm")), *field_of(of=source("far", held_out=True)), failed("avg", of=source("far"))]
    runs.append(ran("<script>alert(1)</script>", of=source("calm"), remarks=["</script><b>"]))
    result = compared(runs)
    text = page(
        result, outcomes(runs), recommendation=recommended(result, runs), command="statechannel simulate compare"
    )
    return text, Reader(text)


def test_it_refers_to_nothing_but_itself(drawn_page):
    text, reader = drawn_page
    assert all(reference.startswith("#") or reference == "data:," for reference in reader.references)
    assert len(reader.references) > 100
    assert re.findall(r"(?:https?:|ftp:|//[a-z])[^\s\"'<>]*", text) == []
    assert "@import" not in text
    assert set(re.findall(r"url\(([^)]?)", text)) == {"#"}
    assert "default-src 'none'" in html.unescape(text)


def test_it_is_well_formed_and_every_name_in_it_is_there_once(drawn_page):
    text, reader = drawn_page
    assert reader.wrong == []
    assert reader.opened == []
    assert len(set(reader.ids)) == len(reader.ids)
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', text))
    assert len(used) > 5
    assert used <= set(reader.ids)


def test_all_that_was_found_out_is_in_it(drawn_page):
    text, reader = drawn_page
    words = " ".join(reader.words)
    for item in (
        "transfer@upstream",
        "threshold@upstream",
        "calm",
        "far",
        "held out",
        "avg, seed 1, failed: ValueError: no",
    ):
        assert item in words
    assert "ours suits best" in words
    assert "statechannel policy set manager extensible" in words
    assert reader.tags.count("svg") == 3
    assert "aims of ours" in words
    assert "style" in text


def test_names_are_no_markup(drawn_page):
    text, reader = drawn_page
    assert "alert(1)</script>" not in text
    assert reader.tags.count("script") == 1
    assert "</script><b>" in " ".join(reader.words)


def test_in_a_browser_it_asks_for_nothing_and_shows_only_what_is_looked_for(drawn_page, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(drawn_page[0], encoding="utf-8")
    browser_or_skip()
    with running_browser() as browser, shown(browser) as seen:
        seen.open(path)
        assert seen.requests == []
        sections = seen.page.locator("section.scenario")
        assert [process.is_visible() for process in sections.all()] == [True, True]
        seen.page.fill("#find", "FAR")
        assert [process.is_visible() for process in sections.all()] == [False, True]
        assert seen.texts("#found") == ["1 of 2 scenarios"]
        seen.page.fill("#find", "threshold@")
        rows = seen.page.locator("section.scenario tbody tr")
        assert {process.text_content().split("@")[0] for process in rows.all() if process.is_visible()} == {"threshold"}
        assert [process.is_visible() for process in sections.all()] == [True, True]
        seen.page.fill("#find", "")
        assert all(process.is_visible() for process in rows.all())
        assert seen.errors == []


def test_the_same_runs_make_the_same_page():
    runs = field_of((1,))
    assert page(compared(runs), outcomes(runs)) == page(compared(runs), outcomes(runs))


def test_a_scenario_without_any_outcome_has_a_page_too():
    runs = [failed("a"), failed("b")]
    reader = Reader(page(compared(runs), []))
    assert "No run of this seed" in " ".join(reader.words)


def test_twenty_scenarios_of_twelve_contenders_can_be_opened():
    """As large as if all were made: plots grow by line and point, so a few stand for all."""
    names = ["ours", *(f"modular/threshold-{number}+least-long-term-rate@upstream" for number in range(11))]
    first = ran("ours", 1, brokers=10, points=720)
    every = [_as(first, name, source(f"s{place}")) for place in range(20) for name in names]
    result = compared(every)

    def size(scenarios: int) -> int:
        """Of a page that draws so many; all are counted when points are chosen."""
        drawn = outcomes(every[: 12 * scenarios])
        return len(
            page(result, drawn + [_only_counted(outcome) for outcome in outcomes(every[12 * scenarios :])]).encode()
        )

    least = size(1)
    per_scenario = size(2) - least
    assert 100_000 < per_scenario < 400_000
    assert least + 19 * per_scenario < 8_000_000


def _as(result: RunResult, name: str, of: TraceSource) -> RunResult:
    """The same outcome as somebody else's."""
    outcome = result.outcome.model_copy(update={"scenario": of.name, "contender": name})
    return RunResult(ContestRun(of, 1, contender(name)), outcome, digest=result.digest)


def _only_counted(outcome: RunOutcome) -> RunOutcome:
    names = {f"b{number:03}": [] for number in range(10)}
    return outcome.model_copy(update={"series": outcome.series.model_copy(update={"loads": names, "at_s": []})})
