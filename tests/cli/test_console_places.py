"""Where and when on the page: operations, addresses of what is shown, zones of time, and the map of a large cluster."""

from urllib.parse import quote

from statechannel.protocol.states import State
from tests.cli.test_console_page import browser, busy, opened, quiet_world  # noqa: F401
from tests.support.page_incidents import cordon
from tests.support.page_server import now_ms

# ruff: noqa: F811


def test_operations_and_drains_say_who_asked_and_how_far_they_are(browser):
    with quiet_world() as world:
        world.cordons = [cordon("b2", "running")]
        with opened(browser, world) as seen:
            seen.shows("#operation-rows", "ann@desk")
            seen.shows("#operation-rows", "6 bundles left")
            seen.page.fill("#search-name", "t/n/topic")
            seen.page.press("#search-name", "Enter")
            seen.page.get_by_role("button", name="Unload…").click()
            seen.page.get_by_role("button", name="Show what would happen").click()
            seen.page.get_by_role("button", name="Unload now").click()
            seen.shows("#operation-rows tr", "unload")
            seen.shows("#operation-rows tr:has-text('unload')", "transferred")


def test_the_address_is_what_is_shown_on_load_and_on_the_way_back(browser, busy):
    bundle = next(iter(busy.owners))
    with opened(browser, busy, at=f"#bundle={quote(bundle, safe='')}&at=0:70&broker=b2") as seen:
        page = seen.page
        seen.shows("#time-text", "change 71.")
        seen.shows("#bundle-title", bundle)
        assert page.input_value("#bundles-broker") == "b2"
        page.get_by_role("button", name="b1", exact=True).first.click()
        page.click("#time-live")
        seen.shows("#time-text", "The page shows the present.")
        page.locator("#bundle").get_by_role("button", name="Close").click()
        assert page.evaluate("location.hash") == "#broker=b1"
        page.go_back()
        seen.shows("#bundle-title", bundle)
        page.go_back()
        seen.shows("#time-text", "change 71.")
        page.go_back()
        page.wait_for_function("document.getElementById('bundles-broker').value === 'b2'")
        assert seen.errors == []


def test_times_are_of_utc_or_of_the_reader(browser, busy):
    with opened(browser, busy, timezone_id="Asia/Kolkata") as seen:
        utc = seen.page.inner_text("#event-rows td.t >> nth=0")
        seen.page.get_by_role("button", name="Times in UTC").click()
        seen.page.get_by_role("button", name="Times in GMT+5:30").wait_for()
        local = seen.page.inner_text("#event-rows td.t >> nth=0")
        minutes = [60 * int(text[:2]) + int(text[3:5]) for text in (utc, local)]
        assert (minutes[1] - minutes[0]) % 1_440 == 330
        seen.page.fill("#time-at", local)
        seen.page.press("#time-at", "Enter")
        seen.shows("#time-text", local)


COLOURED_ROWS = """name => {
  const map = document.getElementById("heat-map"), rows = new Set();
  const { data, width } = map.getContext("2d").getImageData(0, 0, map.width, map.height);
  const paint = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const wanted = [1, 3, 5].map((at) => parseInt(paint.slice(at, at + 2), 16));
  for (let at = 0; at < data.length; at += 4)
    if (wanted.every((part, of) => data[at + of] === part)) rows.add(at / 4 / width | 0);
  return rows.size;
}"""


def test_brokers_have_their_colours_in_a_table_that_came_before_them(browser, busy):
    with opened(browser, busy, bypass_csp=True) as seen:
        seen.page.set_viewport_size({"width": 1280, "height": 3_000})
        for _ in range(3):
            seen.page.reload()
            seen.shows("#bundle-rows", "b2")
            seen.page.wait_for_function("!document.querySelector('#bundle-rows .swatch.others')")


def test_a_map_of_many_bundles_a_row_hides_none_and_leads_to_each(browser):
    with (
        quiet_world(brokers=10, bundles=65_536, page_past_max=0, page_column_s=1) as world,
        opened(browser, world, bypass_csp=True) as seen,
    ):
        page, bundle = seen.page, list(world.owners)[40]
        seen.shows("#heat-legend", "A row is 32 bundles")
        page.focus("#heat-box")
        assert page.evaluate(COLOURED_ROWS, "--gap") == 0
        world.take(world.change(bundle, State.ASSIGNING, None, "b2"))
        page.wait_for_function(f"({COLOURED_ROWS})('--gap') > 0")
        page.keyboard.press("End")
        seen.shows("#heat-tip", "acme/orders, 4,096 bundles: not served 1, ")
        world.take(world.change(bundle, State.ASSIGNED, None, "b77"))
        world.take(*world.lose("b3", now_ms() - 7_000, now_ms() - 1_000, repaired=False))
        page.wait_for_function(f"({COLOURED_ROWS})('--gap') > 20")
        page.locator("#heat-legend").get_by_role("button", name="b77", exact=True).click()
        swatch = page.locator("#heat-legend button[aria-pressed=true] .swatch").get_attribute("class").split()[-1]
        assert page.evaluate(COLOURED_ROWS, "--o2") == 0
        assert page.evaluate(COLOURED_ROWS, f"--{swatch}") > 0, "whoever stands out is seen with one bundle, too"
        page.focus("#heat-box")
        page.keyboard.press("End")
        page.keyboard.press("Enter")
        page.wait_for_function("!document.getElementById('heat-legend').innerText.includes('A row is')")
        for _ in range(10):
            page.keyboard.press("+")
        seen.shows("#heat-tip", "acme/orders/0x")
        assert "after it" not in page.inner_text("#heat-tip")
        page.keyboard.press("0")
        seen.shows("#heat-legend", "A row is 32 bundles")
        assert [text for text in seen.errors if "willReadFrequently" not in text] == []
