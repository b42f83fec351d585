"""`make page-pictures`: design/pictures, the live page in incidents, as a headless browser shows it."""

import sys
from pathlib import Path

from tests.support.browsers import running_browser
from tests.support.page_incidents import INCIDENTS, is_shown, past
from tests.support.page_server import page_world

PICTURES = Path(__file__).parents[2] / "design" / "pictures"


def main() -> int:
    """Take them anew."""
    PICTURES.mkdir(exist_ok=True)
    with running_browser() as browser:
        for name, (happen, problem) in INCIDENTS.items():
            with page_world(past, page_column_s=5) as world:
                context = browser.new_context(viewport={"width": 1280, "height": 1040})
                page = context.new_page()
                page.goto(world.url)
                page.wait_for_selector("html[data-ready=yes]", state="attached")
                happen(world)
                is_shown(page, problem)
                page.wait_for_timeout(400)
                page.screenshot(path=PICTURES / f"page-{name}.png")
                context.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
