"""`python -m tests.corpus FOLDER`: write the corpus, ten thousand logs with their verdicts, views and digests.

Files of 500 lines each, one log a line, and `manifest.json` with their digests. The manifest is the same wherever it is made;
kept.json has its digest, for some numbers of logs. It ends with 1 if it is another one.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import islice
from pathlib import Path

import orjson
from rich.console import Console
from rich.progress import track

from tests.corpus.logs import Case, cases

LOGS = 12_000
LOGS_A_FILE = 500
KEPT = Path(__file__).parent / "kept.json"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--logs", type=int, default=LOGS, metavar="N", help=f"only the first N ({LOGS:,})")
    parser.add_argument("--keep", action="store_true", help="this is the corpus from now on")
    options = parser.parse_args(argv)
    console = Console(soft_wrap=True, highlight=False)
    manifest = write(options.folder, options.logs, console)
    digest = sha256(manifest).hexdigest()
    console.print(f"{options.folder / 'manifest.json'}: SHA-256 {digest}")
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    if options.keep:
        KEPT.write_text(json.dumps(kept | {str(options.logs): digest}, indent=1, sort_keys=True) + "\n")
        return 0
    if kept.get(str(options.logs), digest) != digest:
        console.print(
            f"the kept corpus has {kept[str(options.logs)]}: this version reads or writes logs in another way"
        )
        return 1
    return 0


def write(folder: Path, logs: int, console: Console) -> bytes:
    """Write all files; the bytes of the manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    judged = iter(track(cases(logs), "logs", logs, console=console, transient=True))
    for number, portion in enumerate(_portions(judged)):
        lines = b"".join(case.line() for case in portion)
        path = folder / f"logs-{number:03}.jsonl"
        path.write_bytes(lines)
        files[path.name] = {"logs": len(portion), "sha256": sha256(lines).hexdigest()}
    manifest = orjson.dumps({"corpus": 1, "logs": logs, "files": files}, option=orjson.OPT_INDENT_2) + b"\n"
    (folder / "manifest.json").write_bytes(manifest)
    return manifest


def _portions(judged: Iterator[Case]) -> Iterator[list[Case]]:
    while portion := list(islice(judged, LOGS_A_FILE)):
        yield portion


if __name__ == "__main__":
    sys.exit(main())
