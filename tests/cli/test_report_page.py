"""The page of `audit report` in a headless browser without network: what is in the data is what is shown."""

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from statechannel.audit.engine import AuditQuestion, ExportSource, Wants
from statechannel.audit.local import answer
from statechannel.cli.kit.progress import progress
from statechannel.cli.main import app
from tests.support.browsers import browser_or_skip, running_browser, shown
from tests.support.report_logs import HOSTILE, eventful, hostile, troubled


@pytest.fixture(scope="module")
def browser():
    browser_or_skip()
    with running_browser() as result:
        yield result


def make_page(folder, log, *options):
    """The page of a log, and what the command says of it as JSON."""
    export = log.export(folder / "log.jsonl")
    page = folder / "report.html"
    run = CliRunner().invoke(
        app, ["audit", "report", "--file", str(export), "--out", str(page), "--output", "json", *options]
    )
    assert run.exit_code == 0, run.output
    return page, json.loads(run.stdout), export


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return make_page(tmp_path_factory.mktemp("report"), eventful())


def test_sections_show_the_figures_of_the_audit(browser, report):
    path, data, export = report
    audit = answer(AuditQuestion(ExportSource(export), wants=Wants(gaps=True, rejected=True)), progress=progress)
    with shown(browser) as seen:
        seen.open(path)
        assert seen.texts("#digest") == [audit.answer["digest"]]
        assert seen.texts("#n-records") == [f"{audit.answer['records']:,}"]
        assert seen.texts("#n-accepted") == [f"{audit.answer['accepted']:,}"]
        assert seen.texts("#n-rejected") == [str(sum(audit.answer["rejected"].values()))]
        assert seen.count("#gap-rows tbody tr") == len(audit.gaps) > 50
        lengths = seen.page.eval_on_selector_all(
            "#gap-rows tbody td:nth-child(1)", "all => all.map((one) => one.dataset.v)"
        )
        closed = sorted(gap["length_ms"] for gap in audit.gaps if gap["length_ms"] is not None)
        assert sorted(int(length) for length in lengths)[: len(closed)] == closed
        rejected = dict(
            zip(seen.texts("#reasons tbody td:nth-child(1)"), seen.texts("#reasons tbody td:nth-child(2)"), strict=True)
        )
        assert rejected == {reason: str(count) for reason, count in audit.answer["rejected"].items()}
        writers = dict(
            zip(seen.texts("#writers tbody td:nth-child(1)"), seen.texts("#writers tbody td:nth-child(2)"), strict=True)
        )
        assert writers == {item["writer"]: str(item["records"]) for item in audit.rejected["by_writer"]}
        owned = dict(
            zip(seen.texts("#brokers tbody td:nth-child(1)"), seen.texts("#brokers tbody td:nth-child(2)"), strict=True)
        )
        assert {name: int(count) for name, count in owned.items() if count != "0"} == audit.answer["owners"]
        assert seen.count("#area polygon.stack") == len(data["area"]["brokers"]) == 3
        for marks, of in ((".gap", "gaps"), (".reject", "rejected")):
            counts = seen.page.eval_on_selector_all(
                f"#area {marks}", "all => all.map((one) => Number(one.dataset.count))"
            )
            assert sum(counts) == data[of]["all"]
        assert (seen.requests, seen.errors) == ([], [])


def test_a_bundle_is_chosen_and_its_records_told(browser, report):
    path, data, _ = report
    bundles = [lane for lane in data["lanes"] if lane["lower"] is not None]
    parent = next(lane for lane in bundles if lane["marks"][-1].get("state") == "Deleted")
    with shown(browser) as seen:
        seen.open(path)
        assert seen.count("#bundle option") == len(data["lanes"])
        seen.page.select_option("#bundle", parent["name"])
        drawn = seen.page.eval_on_selector_all("#lanes [data-lane]", "all => all.map((one) => one.dataset.lane)")
        assert drawn[0] == parent["namespace"]
        assert parent["name"] in drawn
        assert len(drawn) >= 4  # the namespace, itself, and its children
        line = f'#lanes [data-lane="{parent["name"]}"]'
        assert seen.count(f"{line} .mark") == len(parent["marks"])
        assert seen.count(f"{line} .mark.rejected") == sum(mark["rejected"] for mark in parent["marks"])
        states = seen.page.eval_on_selector_all(f"{line} .band", "all => all.map((one) => one.dataset.state)")
        assert [state for state in states if state] == [m["band"][0] for m in parent["marks"] if m["band"]][:-1]
        seen.page.locator(f"{line} .hit").last.hover()
        result = seen.page.locator("#tip").inner_text()
        last = parent["marks"][-1]
        assert f"offset {last['offset']}" in result
        assert "accepted: proposal Deleted" in result
        assert f"by {last['by']}, split" in result
        seen.page.fill("#find", "acme/bills")
        assert 0 < seen.count("#bundle option") < len(data["lanes"])
        assert seen.page.input_value("#bundle").startswith("acme/bills")
        assert (seen.requests, seen.errors) == ([], [])


def test_it_is_used_by_keys_alone(browser, report):
    path, data, _ = report
    with shown(browser) as seen:
        seen.open(path)
        seen.page.focus("#lanes")
        name = seen.page.input_value("#bundle")
        marks = next(lane for lane in data["lanes"] if lane["name"] == name)["marks"]
        seen.page.keyboard.press("Home")
        assert f"offset {marks[0]['offset']}" in seen.page.inner_text("#tip")
        seen.page.keyboard.press("ArrowRight")
        assert f"offset {marks[1]['offset']}" in seen.page.inner_text("#tip")
        before = seen.page.inner_text("#shown-span")
        seen.page.keyboard.press("+")
        assert seen.page.inner_text("#shown-span") != before
        seen.page.keyboard.press("0")
        assert seen.page.inner_text("#shown-span") == before
        seen.page.focus("#area")
        seen.page.keyboard.press("End")
        assert "b1: " in seen.page.inner_text("#tip")
        seen.page.keyboard.press("Escape")
        assert seen.page.is_hidden("#tip")
        head = seen.page.locator("#gap-rows th", has_text="length")
        assert head.get_attribute("aria-sort") == "descending"
        head.locator("button").focus()
        for order in ("ascending", "descending"):
            seen.page.keyboard.press("Enter")
            assert head.get_attribute("aria-sort") == order
        lengths = seen.page.eval_on_selector_all(
            "#gap-rows tbody td:nth-child(1)", "all => all.map((one) => Number(one.dataset.v))"
        )
        assert lengths == sorted(lengths, reverse=True)
        seen.page.locator("#gap-rows [data-bundle]").nth(3).focus()
        wanted = seen.page.locator("#gap-rows [data-bundle]").nth(3).get_attribute("data-bundle")
        seen.page.keyboard.press("Enter")
        assert seen.page.input_value("#bundle") == wanted
        assert seen.count("#lanes .gap.here") >= 1
        assert (seen.requests, seen.errors) == ([], [])


def test_what_strangers_write_stays_text(browser, tmp_path):
    path, data, _ = make_page(tmp_path, hostile())
    text = path.read_text(encoding="utf-8")
    assert text.count("</script>") == 2  # the data's and the program's own
    assert "<img" not in text
    with shown(browser) as seen:
        seen.open(path)
        title = seen.page.title()
        assert title == "Audit of bundle-state"
        assert seen.count("img") == 0
        # It is there, to be read.
        visible = HOSTILE.replace("\u202e", "\ufffd").replace("\u0007", "\ufffd")
        assert visible in seen.texts("#newest tbody td:nth-child(3)")
        assert any(visible in why for why in seen.texts("#gap-rows tbody td:nth-child(8)"))
        seen.page.locator("#records summary").click()
        assert any(visible in cell for cell in seen.texts("#records td:nth-child(11)"))
        for hit in seen.page.locator("#lanes .hit").all():
            hit.hover(force=True)
        assert visible in "".join(seen.texts("#tip")) or data["rejected"]["all"]
        assert seen.page.title() == title
        assert (seen.requests, seen.errors) == ([], [])


def test_light_dark_and_paper(browser, report):
    path, _, _ = report
    colours = {}
    for scheme in ("light", "dark"):
        with shown(browser, color_scheme=scheme) as seen:
            seen.open(path)
            colours[scheme] = seen.page.evaluate("getComputedStyle(document.body).backgroundColor")
            if scheme == "dark":
                seen.page.emulate_media(media="print")
                assert seen.page.is_hidden("[data-zoom=in]")
                colours["paper"] = seen.page.evaluate("getComputedStyle(document.body).backgroundColor")
                assert seen.page.evaluate("getComputedStyle(document.body).color") == "rgb(29, 36, 48)"
    assert colours == {"light": "rgb(251, 251, 250)", "dark": "rgb(20, 23, 28)", "paper": "rgb(255, 255, 255)"}


def test_limits_are_said_in_the_page(browser, tmp_path):
    path, data, _ = make_page(tmp_path, eventful(), "--bundles-max", "6", "--points-max", "10", "--rows-max", "5")
    assert len(data["lanes"]) <= 6
    with shown(browser) as seen:
        seen.open(path)
        assert f"{len(data['lanes'])} of {data['keys_all']} bundles" in seen.page.inner_text("#timeline .note >> nth=0")
        assert f"5 of {data['gaps']['all']} gaps" in seen.page.inner_text("#gap-rows caption")
        assert seen.count("#gap-rows tbody tr") == 5
        assert "10 points of time" in seen.page.inner_text("footer")
        assert (seen.requests, seen.errors) == ([], [])


@pytest.fixture(scope="module")
def trouble(tmp_path_factory):
    return make_page(tmp_path_factory.mktemp("trouble"), troubled())


def test_first_comes_what_happened_then_the_longest_gaps(browser, trouble):
    path, data, _ = trouble
    with shown(browser) as seen:
        seen.open(path)
        assert seen.page.inner_text("#summary").split() == " ".join(data["summary"]).split()
        tiles = seen.texts(".tiles dt")
        assert tiles[:3] == ["gaps in service", "longest gap", "incidents"]
        assert seen.texts("#n-incidents") == [str(len(data["incidents"]))] == ["5"]
        assert seen.texts("#incident-rows td:nth-child(3)") == [one["message"] for one in data["incidents"]]
        assert seen.count("#area .sign") == seen.count("#heat-axis .sign") == 5
        assert seen.count("#area .idle rect") > 0
        sections = seen.page.eval_on_selector_all("main section", "all => all.map((one) => one.id)")
        assert sections[:2] == ["incidents", "gaps"]
        seen.page.locator("#incident-rows [data-at]").first.click()
        assert "b2 was lost" in seen.page.inner_text("#tip")
        assert (seen.requests, seen.errors) == ([], [])


def test_gaps_are_filtered_by_text_cause_and_length(browser, report):
    path, data, _ = report
    rows = data["gaps"]["rows"]
    long = [gap for gap in rows if gap["length_ms"] is None or gap["length_ms"] >= 1_000]
    with shown(browser) as seen:
        seen.open(path)
        seen.page.select_option("#gap-least", "1000")
        assert seen.count("#gap-rows tbody tr:visible") == len(long) > 0
        assert seen.page.inner_text("#gap-count") == f"{len(long)} of {len(rows)}"
        seen.page.select_option("#gap-least", "0")
        seen.page.select_option("#gap-cause", "unload")
        assert seen.count("#gap-rows tbody tr:visible") == sum(gap["cause"] == "unload" for gap in rows)
        seen.page.fill("#gap-find", "acme/bills")
        fits = [gap for gap in rows if gap["cause"] == "unload" and "acme/bills" in gap["bundle"]]
        assert seen.count("#gap-rows tbody tr:visible") == len(fits) > 0


def test_all_bundles_are_one_map_that_leads_to_their_timelines(browser, trouble):
    path, data, _ = trouble
    names = [row["name"] for row in data["heat"]["rows"]]
    with shown(browser) as seen:
        seen.open(path)
        seen.page.focus("#heat-box")
        seen.page.keyboard.press("Home")
        seen.page.keyboard.press("ArrowDown")
        told = seen.page.inner_text("#tip")
        assert names[1] in told
        assert "owner b2" in told or "no owner" in told
        seen.page.keyboard.press("Enter")
        assert seen.page.input_value("#bundle") == names[1]
        before = seen.page.evaluate("document.getElementById('heat-map').toDataURL()")
        seen.page.select_option("#heat-mode", "gaps")
        assert seen.page.evaluate("document.getElementById('heat-map').toDataURL()") != before
        assert "up to 10 s" in seen.page.inner_text("#heat-legend")
        seen.page.fill("#heat-find", names[3])
        assert seen.page.inner_text("#heat-count") == f"1 of {len(names)} bundles"
        assert (seen.requests, seen.errors) == ([], [])


@pytest.mark.parametrize("width", [400, 1_280])
def test_rows_of_the_heat_map_have_names_on_narrow_windows_too(browser, trouble, width):
    path, _, _ = trouble
    with shown(browser) as seen:
        seen.page.set_viewport_size({"width": width, "height": 900})
        seen.open(path)
        assert float(seen.page.get_attribute("#heat-map", "data-gutter")) >= 100


@pytest.mark.parametrize("width", [400, 1_280])
def test_nothing_sticks_out_of_the_page_and_text_is_not_scaled(browser, report, width):
    path, _, _ = report
    with shown(browser) as seen:
        seen.page.set_viewport_size({"width": width, "height": 900})
        seen.open(path)
        assert seen.page.evaluate("document.documentElement.scrollWidth") == width
        for chart in ("#area svg", "#lanes svg", "#heat-axis svg"):
            box = seen.page.locator(chart).first.bounding_box()
            drawn = seen.page.eval_on_selector(chart, "one => one.viewBox.baseVal.width")
            assert box["width"] == pytest.approx(drawn, abs=1)
        wide = seen.page.locator("#gap-rows").bounding_box()["width"]
        assert wide <= seen.page.locator("#gaps").bounding_box()["width"]
        # A name of a bundle has a line for its range, or all of it on one.
        height = seen.page.locator("#gap-rows td.k bdi").first.bounding_box()["height"]
        assert height < 45


def test_a_page_that_is_made_narrower_is_drawn_again(browser, report):
    path, _, _ = report
    with shown(browser) as seen:
        seen.open(path)
        seen.page.set_viewport_size({"width": 500, "height": 900})
        seen.page.wait_for_function("document.querySelector('#area svg').viewBox.baseVal.width < 500")
        assert seen.page.evaluate("document.documentElement.scrollWidth") == 500


def test_tables_are_read_without_scripts(browser, report):
    path, data, _ = report
    with shown(browser, java_script_enabled=False) as seen:
        seen.page.goto(path.as_uri())
        assert seen.count("#gap-rows tbody tr") == len(data["gaps"]["rows"])
        assert seen.page.is_hidden("#gap-filter")
        assert seen.page.is_visible("noscript p")


def test_a_window_is_named_and_bounds_what_is_shown(browser, tmp_path):
    since = troubled().now_ms - 10_000
    path, data, _ = make_page(tmp_path, troubled(), "--since", f"{since}ms", "--until", f"{since + 8_000}ms")
    assert data["window"] == {"since_ms": since, "until_ms": since + 8_000}
    with shown(browser) as seen:
        seen.open(path)
        assert "the log was judged as a whole" in seen.page.inner_text("#window")
        assert seen.count("#incident-rows tbody tr") == len(data["incidents"]) < 5


def test_o_is_the_page_or_the_format_by_its_value(tmp_path: Path) -> None:
    export, runner = eventful().export(tmp_path / "log.jsonl"), CliRunner()

    def report(*args: str) -> Result:
        result = runner.invoke(app, ["audit", "report", "--file", str(export), *args])
        assert result.exit_code == 0, result.output
        return result

    page, other = tmp_path / "page.html", tmp_path / "other.html"
    alone = json.loads(report("-o", "json").stdout)
    assert (alone["file"], alone["size_bytes"]) == (None, None)
    assert not list(tmp_path.glob("*.html"))
    both = json.loads(report("-o", "json", "--out", str(page)).stdout)
    assert (both["file"], both["size_bytes"]) == (str(page), page.stat().st_size)
    assert {name: both[name] for name in ("gaps", "incidents")} == {name: alone[name] for name in ("gaps", "incidents")}
    assert json.loads(report("--output", "json").stdout)["gaps"] == alone["gaps"]
    assert report("-o", str(other)).stdout == ""
    assert other.read_text().startswith("<!")
