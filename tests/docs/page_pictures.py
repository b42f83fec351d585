"""`make page-pictures`: design/pictures, the live page in incidents, as a headless browser shows it."""

import io
import sys
from pathlib import Path
from typing import Final

from PIL import Image

from tests.support.browsers import running_browser
from tests.support.page_incidents import INCIDENTS, PageIncident, past
from tests.support.page_server import page_world

PICTURES = Path(__file__).parents[2] / "design" / "pictures"
WIDE: Final = (1280, 1040, "light")
VIEWS: Final = {
    "calm": {"calm": WIDE, "calm-dark": (1280, 1040, "dark")},
    "mass-loss": {"mass-loss": (1280, 1040, "dark"), "mass-loss-narrow": (400, 1000, "light")},
    "stuck-hook": {"stuck-hook": WIDE, "stuck-hook-narrow": (400, 1000, "dark")},
}
"""Pictures by incident: width and height of the window, and the scheme of colours; of others one that is wide and light."""
_COLOURS: Final = 96


def main() -> int:
    """Take them anew."""
    PICTURES.mkdir(exist_ok=True)
    with running_browser() as browser:
        for incident in (PageIncident("calm", lambda _: None, None, (("#fine", "Nothing."),)), *INCIDENTS):
            for name, (width, height, scheme) in VIEWS.get(incident.name, {incident.name: WIDE}).items():
                with page_world(past, page_column_s=5) as world:
                    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
                    page = context.new_page()
                    page.goto(world.url)
                    page.wait_for_selector("html[data-ready=yes]", state="attached")
                    incident.happen(world)
                    for selector, text in incident.named:
                        page.locator(selector, has_text=text).first.wait_for()
                    page.wait_for_timeout(1_200)
                    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB").quantize(_COLOURS)
                    picture.save(PICTURES / f"page-{name}.png", optimize=True)
                    context.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
