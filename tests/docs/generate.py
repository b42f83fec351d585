"""Writes the generated parts of the documentation: a part of `make docs`.

A part stands between `<!-- generated: name -->` and `<!-- end -->`; what stands between them is replaced.
"""

import re
import sys
from pathlib import Path

from tests.docs.blocks import BLOCKS

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"(<!-- generated: ([a-z-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def pages() -> list[Path]:
    """Every page that may hold generated parts."""
    readme = ROOT / "README.md"
    return [*([readme] if readme.exists() else []), *sorted((ROOT / "design").rglob("*.md"))]


def names_in(text: str) -> list[str]:
    """Names of the generated parts of a page."""
    return [match.group(2) for match in _BLOCK.finditer(text)]


def rendered(text: str) -> str:
    """The page with its generated parts made anew."""
    return _BLOCK.sub(lambda match: f"{match.group(1)}\n{BLOCKS[match.group(2)]().strip()}\n\n{match.group(4)}", text)


def main() -> int:
    """Rewrite every page that has changed."""
    for page in pages():
        before = page.read_text(encoding="utf-8")
        after = rendered(before)
        if after != before:
            page.write_text(after, encoding="utf-8")
            sys.stdout.write(f"wrote {page.relative_to(ROOT)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
