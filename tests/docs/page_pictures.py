"""`make page-pictures`: design/pictures, the live page in incidents, as a headless browser shows it."""

import io
import sys
from pathlib import Path
from typing import Final

from PIL import Image

from tests.support.browsers import running_browser
from tests.support.page_incidents import INCIDENTS, is_shown, past
from tests.support.page_server import page_world

PICTURES = Path(__file__).parents[2] / "design" / "pictures"
OTHER_VIEWS: Final = {
    "calm": (1280, "light"),
    "calm-dark": (1280, "dark"),
    "mass-loss-narrow": (400, "light"),
    "stuck-hook-narrow": (400, "dark"),
}
"""Width of the window and scheme of colours, by the name of the picture: of others 1,280 and light."""


def main() -> int:
    """Take them anew."""
    PICTURES.mkdir(exist_ok=True)
    with running_browser() as browser:
        for name in (*INCIDENTS, *OTHER_VIEWS):
            incident = INCIDENTS.get(name) or INCIDENTS.get(name.rpartition("-")[0])
            width, scheme = OTHER_VIEWS.get(name, (1280, "light"))
            with page_world(past, page_column_s=5) as world:
                page = browser.new_page(viewport={"width": width, "height": 1040}, color_scheme=scheme)
                page.goto(world.url)
                page.wait_for_selector("html[data-ready=yes]", state="attached")
                if incident is not None:
                    happen, problem = incident
                    happen(world)
                    is_shown(page, problem)
                page.wait_for_timeout(1_200)
                picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
                picture.quantize(255, Image.Quantize.MAXCOVERAGE).save(PICTURES / f"page-{name}.png", optimize=True)
                page.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
