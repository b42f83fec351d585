"""The page of the cluster in a headless browser: what happens is named, whatever is written stays text, and all can use it."""

import re
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe

from statechannel.broker.changes import Derived
from statechannel.protocol.states import State
from tests.support.browsers import browser_or_skip, running_browser
from tests.support.page_incidents import INCIDENTS, changed, cordon, is_shown, past
from tests.support.page_server import NAMESPACE, now_ms, page_world

PAGE_MAX_BYTES = 300_000
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>\u202e${7*7}"


@pytest.fixture(scope="module")
def browser():
    browser_or_skip()
    with running_browser() as result:
        yield result


class Opened:
    """The page of a world, and what went wrong in it."""

    def __init__(self, page, url: str) -> None:
        self.page = page
        self.errors: list[str] = []
        self.loaded: dict[str, int] = {}
        page.on("console", lambda message: self.errors.append(message.text))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("dialog", lambda dialog: self.errors.append(f"dialog {dialog.message}") or dialog.dismiss())
        page.goto(url)
        page.wait_for_selector("html[data-ready=yes]", state="attached")

    def shows(self, selector: str, text: str) -> None:
        self.page.locator(selector, has_text=text).first.wait_for()


@contextmanager
def opened(browser, world, *, width=1280, at="", **options):
    context = browser.new_context(viewport={"width": width, "height": 1000}, **options)
    context.set_default_timeout(60_000)
    try:
        yield Opened(context.new_page(), f"{world.url}/{at}")
    finally:
        context.close()


def last_day_of(clock: str) -> str:
    """The day on which it was so late for the last time."""
    now = datetime.now(UTC)
    return f"{now if clock <= f'{now:%H:%M:%S}' else now - timedelta(days=1):%Y-%m-%d}"


@contextmanager
def quiet_world(**http):
    with page_world(past, **http) as world:
        yield world


@pytest.mark.parametrize("name", INCIDENTS)
def test_an_incident_is_named_with_its_cause(browser, name):
    happen, problem = INCIDENTS[name]
    with quiet_world() as world, opened(browser, world) as seen:
        seen.shows("#problems", "Nothing.")
        happen(world)
        is_shown(seen.page, problem)
        assert problem or seen.page.locator("#problem-rows li").count() == 0
        assert seen.errors == []


@pytest.fixture(scope="module")
def busy():
    """A world with a lost broker and a stuck hook, for tests that only read."""
    with quiet_world(page_column_s=5) as world:
        INCIDENTS["owner-killed"][0](world)
        INCIDENTS["stuck-hook"][0](world)
        yield world


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_everybody_can_read_and_use_it(browser, busy, scheme, width):
    with opened(browser, busy, width=width, color_scheme=scheme, bypass_csp=True) as seen:
        seen.shows("#problem-rows", "not back: b3")
        seen.page.fill("#search-name", next(iter(busy.owners)))
        seen.page.press("#search-name", "Enter")
        seen.shows("#bundle-body", "Timeline, the newest first")
        seen.page.click("#time-previous-event")
        seen.shows("#time-text", "As of")
        found = Axe().run(seen.page).response
        assert [rule["id"] for rule in found["violations"]] == [], [rule["nodes"] for rule in found["violations"]]
        assert len(found["passes"]) > 15
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
        assert seen.errors == []


@pytest.mark.lane("fast")
def test_it_is_used_by_keys_alone(browser, busy):
    with opened(browser, busy) as seen:
        page = seen.page
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        left = {"search-name", "time-previous", "time-at", "heat-by", "heat-box", "event-rows"}
        for _ in range(400):
            page.keyboard.press("Tab")
            left.discard(page.evaluate("document.activeElement.id || document.activeElement.closest('[id]')?.id"))
        assert not left
        page.focus("#heat-box")
        page.keyboard.press("End")
        page.keyboard.press("ArrowDown")
        assert list(busy.owners)[1] in page.inner_text("#heat-tip")
        page.keyboard.press("Enter")
        seen.shows("#bundle-title", list(busy.owners)[1])
        page.locator("#bundle-title:focus").wait_for()
        assert seen.errors == []


def test_the_page_goes_back_in_time_and_compares(browser):
    with quiet_world() as world, opened(browser, world) as seen:
        page, bundle = seen.page, list(world.owners)[3]
        before = world.owners[bundle]
        seen.shows("#head", "32")
        page.click("#time-mark")
        seen.shows("#time-text", "is marked")
        world.take(*world.transfer(bundle, "b1", now_ms(), reason="disks"))
        page.wait_for_function("place => Number(document.documentElement.dataset.place) >= place", arg=len(world.log))
        page.click("#time-mark")
        seen.shows("#time-text", "1 bundle has another owner")
        seen.shows("#time-body", f"{before} to b1")
        page.click("#time-previous")
        seen.shows("#time-text", f"change {len(world.log) - 1}.")
        seen.shows("#time-body", f"{bundle}: Assigning")
        page.click("#time-next")
        seen.shows("#time-text", f"change {len(world.log)}.")
        page.fill("#time-at", "0:0")
        page.press("#time-at", "Enter")
        seen.shows("#time-text", "change 1.")
        for text, shown in [
            ("yesterday", "yesterday is no time and no offset"),
            ("-1", "-1 is no time"),
            *(
                (clock, last_day_of(clock))
                for clock in (page.inner_text("#time-body .here")[:8], f"{datetime.now(UTC):%H:%M}")
            ),
        ]:
            page.fill("#time-at", text)
            page.press("#time-at", "Enter")
            seen.shows("#time-text", shown)
        page.click("#time-live")
        seen.shows("#time-text", "The page shows the present.")
        page.click("#time-next")
        seen.shows("#time-text", "There is no later change yet.")
        assert seen.errors == []


def test_the_past_shows_nothing_of_the_present(browser):
    with quiet_world(page_topics_s=1) as world:
        load = dict.fromkeys(
            ("memory_percent", "direct_memory_percent", "bandwidth_in_percent", "bandwidth_out_percent")
        )
        load |= {"cpu_percent": 88.0, "msg_throughput_in": 1e6, "msg_throughput_out": 1e3}
        world.loads = {"brokers": [{"broker": "b2", **load}], "bundles": [], "notes": []}
        world.loads_then = {"brokers": [{"broker": "b2", **load, "cpu_percent": 33.0}], "bundles": [], "notes": []}
        with opened(browser, world) as seen:
            page = seen.page
            columns = "all => all.map(one => one.innerText)"
            seen.shows("#broker-rows", "CPU 88 %")
            world.take(*world.lose("b3", now_ms() - 12_000, now_ms()))
            seen.shows("#problem-rows", "not back: b3")
            page.fill("#time-at", "0:70")
            page.press("#time-at", "Enter")
            seen.shows("#light-text", "The past:")
            seen.shows("#broker-rows", "load then: unknown")
            seen.shows("#broker-rows", "CPU 33 %")
            assert page.locator("#problem-rows li").count() == 0
            assert page.locator("#problems-past").is_visible()
            rows = page.eval_on_selector_all("#broker-rows tbody tr", columns)
            assert len(rows) == 4
            assert all("state then: unknown" in row for row in rows)
            assert not any("lost" in row or "88" in row or "Drain" in row for row in rows)
            assert "b3 was lost" not in page.inner_text("#event-rows")
            seen.shows("#decision-rows", "6 moves")
            assert "balanced" not in page.inner_text("#decision-rows")  # the later decision
            assert page.inner_text("#head div:has(dt:text-is('leader')) dd") == "unknown"
            map_ = page.inner_text("#heat-tip")
            page.focus("#heat-box")
            page.keyboard.press("End")
            assert page.inner_text("#heat-tip") != map_
            assert "load not known" in page.inner_text("#heat-tip")
            page.fill("#search-name", next(iter(world.owners)))
            page.press("#search-name", "Enter")
            seen.shows("#bundle-body", "as of")
            assert page.get_by_role("button", name="Unload…").count() == 0
            page.click("#time-live")
            seen.shows("#problem-rows", "not back: b3")
            seen.shows("#broker-rows", "CPU 88 %")
            seen.shows("#event-rows", "of b3 without owner: owner lost")
            page.locator("#bundle-body:not(:has-text('as of'))").wait_for()
            assert seen.errors == []


def test_a_replica_that_differs_is_named(browser):
    difference = {"partition": 0, "broker": "b3", "offset": 9, "equal_at": 4, "keys": 5, "their_keys": 6}

    def say(world, *differing):
        world.rows = [
            row | {"phase": "caught-up", "differs": [difference] if row["broker"] in differing else []}
            for row in world.rows
        ]
        world.look()

    def prepare(world):
        past(world)
        say(world, "b1", "b2", "b4")

    with page_world(prepare) as world, opened(browser, world) as seen:
        seen.shows("#head", "b3 differs")
        seen.shows("#problem-rows", "different accepted states of partition 0 at offset 9")
        seen.shows("#broker-rows tr", "replica differs")
        kinds = seen.page.eval_on_selector_all("#problem-rows li", "all => all.map((one) => one.dataset.kind)")
        assert kinds == ["replicas-differ"]
        title = seen.page.get_attribute("#head div:has(dt:text-is('replicas'))", "title")
        assert "equal through offset 4" in title
        say(world)
        seen.shows("#head", "4 of 4 caught up, none differs")
        seen.shows("#problems", "Nothing.")
        assert seen.errors == []


def test_the_load_of_brokers_and_of_hash_ranges(browser):
    with quiet_world(page_column_s=600, page_topics_s=1) as world, opened(browser, world) as seen:
        hot = sorted(world.owners)[3]
        world.loads = {
            "brokers": [
                {
                    "broker": "b2", "cpu_percent": 93.4, "memory_percent": None, "direct_memory_percent": 12.0,
                    "bandwidth_in_percent": 3.0, "bandwidth_out_percent": 44.0,
                    "msg_throughput_in": 2.5e6, "msg_throughput_out": 800.0
                }
            ],
            "bundles": [{"bundle": hot, "broker": "b2", "msg_throughput_in": 1e6, "msg_throughput_out": 5e5}],
            "notes": []
        }  # fmt: skip
        seen.shows("#broker-rows .warn", "CPU 93 %, direct memory 12 %, network in 3 %, network out 44 %, 2.5 MB/s in")
        seen.shows("#broker-rows", "not reported")
        seen.page.select_option("#heat-by", "load")
        seen.shows("#heat-legend", "bytes a second")
        seen.page.focus("#heat-box")
        for key in ("End", "PageUp", "PageUp", "PageUp", "PageUp", "ArrowDown", "ArrowDown", "ArrowDown"):
            seen.page.keyboard.press(key)
        seen.shows("#heat-tip", "1.5 MB/s")
        seen.page.keyboard.press("ArrowDown")
        seen.shows("#heat-tip", ", 0 B/s")
        assert seen.errors == []


def test_a_topic_leads_to_its_bundle_and_history(browser, busy):
    with opened(browser, busy) as seen:
        seen.page.fill("#search-name", "t/n/topic")
        seen.page.press("#search-name", "Enter")
        seen.shows("#bundle-title", "t/n/0x00000000_0xffffffff")
        seen.page.locator("#event-rows button").first.click()
        seen.shows("#bundle-body", "b3 was lost")
        for name, where, text in (
            ("nonsense", "#bundle-body", "nonsense is in no namespace"),
            ("b4", "#bundles-count", f"{list(busy.owners.values()).count('b4')} bundles."),
            (NAMESPACE, "#bundles-count", f"{len(busy.owners)} bundles."),
            ("b1", "#bundles-count", f"{list(busy.owners.values()).count('b1')} bundles."),
        ):
            seen.page.fill("#search-name", name)
            seen.page.press("#search-name", "Enter")
            seen.shows(where, text)


def test_a_caller_who_may_only_read_sees_no_action(browser, busy):
    with quiet_world(open_role="read") as world, opened(browser, world) as seen:
        seen.shows("#broker-tools", "you may only read. Start the process with --set http.open_role=operate")
        seen.shows("#bundle-rows", "acme/orders")
        assert seen.page.locator("#broker-rows", has_text="Drain").count() == 0
        assert seen.page.locator("input[type=checkbox]").count() == 0


@pytest.mark.parametrize(
    ("incident", "remedy", "asked"),
    [("owner-killed", "Dismiss b3…", "brokers/b3/dismiss"), ("mass-loss", "Resume repair…", "repair/resume")],
)
def test_a_remedy_that_is_named_is_a_click_away(browser, incident, remedy, asked):
    with quiet_world() as world, opened(browser, world) as seen:
        INCIDENTS[incident][0](world)
        seen.page.route(f"**/v1/{asked}", lambda route: route.fulfill(json={"would": [route.request.post_data]}))
        seen.page.get_by_role("button", name=remedy).focus()
        before = seen.page.inner_text("#problem-rows")
        seen.page.wait_for_function("text => document.getElementById('problem-rows').innerText !== text", arg=before)
        seen.page.keyboard.press("Enter")
        seen.page.get_by_role("button", name="Show what would happen").click()
        seen.shows("#dialog-body", '{"dry_run":true}')
        seen.page.get_by_role("button", name=f"{remedy.split()[0]} now").click()
        seen.shows("#dialog-body", "Done, or under way")


def test_bundles_are_filtered_chosen_and_moved_together(browser):
    with quiet_world() as world, opened(browser, world) as seen:
        page, names, asked = seen.page, "all => all.map(one => one.innerText)", []
        page.get_by_role("button", name="b2", exact=True).first.click()
        owned = [name for name, owner in sorted(world.owners.items()) if owner == "b2"]
        seen.shows("#bundles-count", f"{len(owned)} bundles.")
        assert page.eval_on_selector_all("#bundle-rows tbody td:nth-child(2)", names) == owned
        assert "broker=b2" in page.url

        def answer(route):
            bundle, body = (
                route.request.url.split("/v1/bundles/")[1].removesuffix("/transfer"),
                route.request.post_data_json,
            )
            asked.append((bundle, body["destination"], body["dry_run"]))
            refused = {
                "status": 409,
                "json": {"reason": "filtered", "message": "policies forbid it", "hint": "Ask ann."},
            }
            route.fulfill(**(refused if bundle == owned[0] else {"json": {"would": [f"b2 would release {bundle}"]}}))

        page.route("**/transfer", answer)
        page.get_by_role("button", name="Choose all that are listed").click()
        page.get_by_role("checkbox", name=owned[1]).uncheck()
        page.get_by_role("button", name="Move the chosen…").click()
        page.select_option("#act-to", "b3")
        page.get_by_role("button", name="Show what would happen").click()
        seen.shows("#dialog-body", "policies forbid it")
        seen.shows("#dialog-body", "Ask ann.")
        passed = [name for name in owned if name not in owned[:2]]
        page.get_by_role("button", name=f"Transfer {len(passed)} now").click()
        seen.shows("#dialog-body", f"Done, or under way ({len(passed)} of {len(passed)})")
        assert sorted(asked) == sorted(
            [(name, "b3", True) for name in [owned[0], *passed]] + [(name, "b3", False) for name in passed]
        )
        page.keyboard.press("Escape")
        page.select_option("#bundles-broker", "")
        world.take(*world.lose("b4", now_ms() - 12_000, now_ms(), repaired=False))
        lost = sum(owner == "b4" for owner in world.owners.values())
        page.select_option("#bundles-state", "unserved")
        seen.shows("#bundles-count", f"{lost} bundles.")
        seen.shows("#namespace-rows", "t/n")
        page.get_by_role("button", name="t/n", exact=True).click()
        seen.shows("#bundles-count", "0 bundles.")


@pytest.mark.parametrize(
    ("row", "role", "state", "asked"),
    [
        (cordon("b2", "running"), "operate", "draining, 6 left", "v1/brokers/b2/drain?dry_run=true"),
        (cordon("b2", "drained"), "operate", "cordoned by its drain", "v1/brokers/b2/drain?dry_run=true"),
        (cordon("b2", None), "operate", "cordoned by ann@desk", None),
        (cordon("b2", None), "force", "ann@desk", "v1/brokers/b2/drain?force=true&dry_run=true"),
        (cordon("b2", None, override=True), "operate", "ann@desk", "v1/overrides/cordon/b2?dry_run=true"),
    ],
    ids=["running", "drained", "of-a-person", "of-a-person-by-force", "override"],
)
def test_a_cordon_is_shown_and_ended_as_it_was_written(browser, row, role, state, asked):
    with quiet_world(open_role=role, page_topics_s=3_600) as world:
        world.cordons = [row]
        with opened(browser, world) as seen:
            page, sent = seen.page, []
            seen.shows("#broker-rows", state)
            seen.shows("#problems", "Nothing.")
            assert page.get_by_role("button", name="Drain").count() == len(world.rows) - 1
            ends = page.get_by_role("button", name="Uncordon", exact=True)
            assert ends.count() == (asked is not None)
            if asked is None:
                return

            def answer(route):
                sent.append((route.request.method, route.request.url, route.request.post_data_json))
                route.fulfill(json={"dry_run": True, "would": ["b2 would take bundles again"]})

            page.route("**/cordon/b2?*", answer)
            page.route("**/drain?*", answer)
            ends.click()
            seen.shows("#dialog-body", "Cordoned by ann@desk")
            page.get_by_role("button", name="Show what would happen").click()
            seen.shows("#dialog-body", "b2 would take bundles again")
            assert sent == [("DELETE", f"{world.url}/{asked}", None)]
            if row["drain_state"] == "running":  # it is looked at until it has ended
                world.cordons = [
                    row | {"drain_state": "failed", "drain_ended_ms": now_ms(), "drain_message": "no disk"}
                ]
                seen.shows("#problem-rows", "no disk")
            assert seen.errors == []


def test_an_action_shows_its_dry_run_first(browser, busy):
    with opened(browser, busy) as seen:
        page = seen.page
        page.fill("#search-name", "t/n/topic")
        page.press("#search-name", "Enter")
        page.get_by_role("button", name="Unload…").click()
        begin = page.get_by_role("button", name="Unload now")
        assert begin.is_disabled()
        page.get_by_role("button", name="Show what would happen").click()
        seen.shows("#dialog-body p", "would release t/n/")
        begin.click()
        seen.shows("#dialog-body", "Done, or under way")
        assert begin.is_disabled()
        found = {"asked": "", "bundle": "t/n/x", "row": {"state": "Unassigned"}, "history": [], "whole": True}
        page.route("**/v1/page/bundle?*", lambda route: route.fulfill(json=found))
        page.goto(f"{busy.url}/?#bundle=t%2Fn%2Fx")
        page.get_by_role("button", name="Assign…").click()
        page.get_by_role("button", name="Show what would happen").click()
        seen.shows("#dialog-body p", "owned: b1")


def test_what_is_typed_during_a_dry_run_has_had_none(browser, busy):
    with opened(browser, busy) as seen:
        page, held = seen.page, []

        def hold(route):
            held.append(route)

        page.route("**/transfer", hold)
        page.fill("#search-name", "t/n/topic")
        page.press("#search-name", "Enter")
        page.get_by_role("button", name="Transfer…").click()
        page.get_by_role("button", name="Show what would happen").click()
        assert page.locator("#act-to:invalid").count() == 1, "it is asked for, and not as an error of the API"
        names = page.eval_on_selector_all("#act-to option", "all => all.map(it => it.value)")
        assert names == ["", "b4", "b1", "b2"], "by load; b3 is lost"
        page.select_option("#act-to", "b2")
        with page.expect_request("**/transfer"):
            page.get_by_role("button", name="Show what would happen").click()
        page.select_option("#act-to", "b1")
        held.pop().fulfill(json={"would": ["b2"]})
        seen.shows("#dialog-body", "It would do this")
        assert page.get_by_role("button", name="Transfer now").is_disabled()


def test_the_first_word_is_the_verdict_and_tables_fill_and_empty(browser):
    with quiet_world() as world, opened(browser, world) as seen:
        seen.shows("#verdict", "HEALTHY")
        assert seen.page.inner_text("header").startswith("HEALTHY")
        INCIDENTS["stuck-hook"][0](world)
        seen.shows("#verdict", "DEGRADED since")
        seen.shows("#verdict", "no answer of the storage")
        stuck = world.log[-1]
        for expected in (stuck.bundle, "Nothing"):
            seen.shows("#between-rows tbody", expected)
            assert len(seen.page.locator("#between-rows tbody tr").all()) == 1
            world.take(world.change(stuck.bundle, State.ASSIGNED, "b2", "b4"))
        assert seen.errors == []


def test_an_open_card_follows_the_log(browser):
    with quiet_world() as world:
        bundle = list(world.owners)[3]
        with opened(browser, world, at=f"#bundle={quote(bundle, safe='')}") as seen:
            seen.shows("#bundle-body", "Timeline, the newest first")
            world.take(*world.transfer(bundle, "b1", now_ms(), reason="disks"))
            seen.shows("#bundle-body tbody", "disks")
            seen.page.locator("#bundle-body .swatch:not(.others)").first.wait_for()
            assert seen.errors == []


def test_a_page_whose_server_died_looks_so_and_names_others(browser):
    with ExitStack() as server:
        world = server.enter_context(quiet_world())
        changed(world, "b2", api="http://127.0.0.1:9")
        changed(world, "b3", api="http://127.0.0.1:10", state="lost")
        world.look()
        with opened(browser, world) as seen:
            for away_ms, drains in ((None, 3), (now_ms() - 3_000, 0), (None, 3)):  # nor of one that has no Kafka
                world.look(away_since_ms=away_ms)
                seen.page.wait_for_function(
                    "many => document.querySelectorAll('#broker-rows td[data-label=actions] button').length === many",
                    arg=drains,
                )
            server.close()
            seen.shows("#verdict", "UNKNOWN no news from b1: all below is as of")
            assert seen.page.eval_on_selector_all("#elsewhere a", "all => all.map(String)") == ["http://127.0.0.1:9/"]
            assert seen.page.evaluate("getComputedStyle(document.getElementById('main')).filter") == "grayscale(1)"
            assert seen.page.locator("#light.bad").count() == 1
            assert seen.page.get_by_role("button", name="Drain").count() == 0
            seen.shows("#bundle-tools", "No actions while there is no news of the cluster.")


def test_what_strangers_write_stays_text(browser):
    with quiet_world() as world:
        bundle = next(iter(world.owners))
        odd = dict.fromkeys(("by", "reason", "operation", "flow"), HOSTILE)
        odd_change = world.change(bundle, State.RELEASING, world.owners[bundle], HOSTILE, **odd)
        no_date = {"bundles": 1, "bundle": bundle, "reason": "isolation", "cause": "policies", "message": "of no date"}
        no_date |= {"since_ms": 2**64 - 1, "ago_ms": 0}
        world.rows[1] = {**world.rows[1], "broker": HOSTILE, "software": HOSTILE, "unplaced": no_date}
        world.decisions[0] |= {"why": HOSTILE, "leader": HOSTILE}
        world.look()
        with opened(browser, world) as seen:
            world.take(
                odd_change,
                world.change(
                    f"{NAMESPACE}/x", State.ACTIVE, None, None, derived=[Derived(HOSTILE, State.ASSIGNED, 1, HOSTILE)]
                ),
            )
            seen.shows("#between-rows", "<img src=x")
            seen.shows("#problems", "of no date")
            seen.shows("#broker-rows", "<script>alert(2)</script>\ufffd${7*7}")
            seen.shows("#decision-rows", "<img src=x")
            seen.page.fill("#search-name", bundle)
            seen.page.press("#search-name", "Enter")
            seen.shows("#bundle-body", "<script>")
            seen.page.click("#time-previous-event")
            seen.page.wait_for_timeout(300)
            assert seen.page.locator("img").count() == 0
            assert seen.page.locator("script:not([src^='page/'])").count() == 0
            assert seen.errors == []


def test_nothing_but_its_own_files_can_act(browser, busy):
    answer = httpx.get(busy.url)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for name in set(re.findall(r"page/[a-z_.]+", answer.text)):
        assert httpx.get(f"{busy.url}/{name}").status_code == 200
    for name in ("nothing.js", quote("../page_routes.py", safe=""), "__init__.py"):
        assert httpx.get(f"{busy.url}/page/{name}").status_code == 404
    assert httpx.get(busy.url, headers={"Host": "example.org"}).status_code == 421
    with opened(browser, busy) as seen:
        violated = seen.page.evaluate(
            """() => new Promise((done) => {
              const seen = [];
              document.addEventListener("securitypolicyviolation", (event) => {
                seen.push(event.effectiveDirective);
                if (seen.length === 3) done(seen.sort());
              });
              const script = document.createElement("div");
              script.setAttribute("style", "color: red");
              const image = document.createElement("img");
              image.src = "http://127.0.0.1:9/x.png";
              fetch("http://127.0.0.1:9/").catch(() => {});
            })"""
        )
        assert violated == ["connect-src", "img-src", "style-src-attr"]


def test_the_page_is_small(browser, busy):
    context = browser.new_context()
    sizes = []
    page = context.new_page()
    page.on("response", lambda response: sizes.append(response) if "/v1/" not in response.url else None)
    page.goto(busy.url)
    page.wait_for_selector("html[data-ready=yes]", state="attached")
    assert len(sizes) >= 9
    assert all(response.url.startswith(busy.url) for response in sizes)
    assert sum(len(response.body()) for response in sizes) <= PAGE_MAX_BYTES
    context.close()
