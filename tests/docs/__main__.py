"""`make docs`: everything in README and design/ that is made from the code, and the listing of the public API."""

import sys
from collections.abc import Callable, Iterable, Mapping

from shedders import schemas
from tests.architecture import public_api
from tests.docs import api_page, generate, http_blocks, settings_pages, strategy_pages
from tests.docs.observability_blocks import ALERTS, alerts_file

DESIGN = generate.ROOT / "design"
PAGES: Mapping[str, Callable[[], Iterable[str]]] = {
    "reference/api.md": api_page.api_page,
    "reference/settings.md": settings_pages.settings_page,
    "reference/balancer-settings.md": settings_pages.balancer_page,
    "reference/partitions-settings.md": settings_pages.partitions_page,
    "reference/strategies.md": strategy_pages.strategies_page,
    "reference/partitions-goals.md": strategy_pages.goals_page,
}
"""Pages that are made as a whole; their lines by file name."""


def page_text(name: str) -> str:
    """What a page of PAGES holds."""
    return "\n".join(PAGES[name]()) + "\n"


def main() -> int:
    """Make them again."""
    for name in PAGES:
        (DESIGN / name).write_text(page_text(name), encoding="utf-8")
    (DESIGN / "reference" / "openapi.json").write_text(http_blocks.openapi_text(), encoding="utf-8")
    ALERTS.write_text(alerts_file(ALERTS.read_text(encoding="utf-8")), encoding="utf-8")
    schemas.main()
    public_api.main()
    return generate.main()


if __name__ == "__main__":
    sys.exit(main())
