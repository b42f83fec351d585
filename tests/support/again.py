"""What failed, once more and one after the other: `python -m tests.support.again CODE [ARGS]`, called by `make test`.

Three workers with real brokers on two cores starve one of them now and then, and it does what a broker does that hears nothing of
its cluster. Only that is tried again: a whole run without options of its own, in which few tests of the lanes with real processes
failed. The first failure stays in the output.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

LANES = ("tests/cli/", "tests/docs/", "tests/faults/", "tests/kafka/", "tests/spark/")
"""They have real brokers, Kafka or Spark."""
FAILED_MAX = 5
"""More than these are no accident."""
LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")
RED = 1


def main(argv: Sequence[str]) -> int:
    """Ends with the code of the first run where nothing is to be tried again; with 0 only if each test passed then."""
    code, *options = argv
    failed = sorted(json.loads(LAST_FAILED.read_text())) if LAST_FAILED.exists() else []
    if int(code) != RED or options or not 0 < len(failed) <= FAILED_MAX:
        return int(code)
    if not all(one.startswith(LANES) for one in failed):
        return RED
    print(f"\nonce more, with the machine to themselves: {', '.join(failed)}", flush=True)
    ran = subprocess.run([sys.executable, "-m", "pytest", *failed], check=False, stdout=subprocess.PIPE, text=True)
    print(ran.stdout, flush=True)
    summary = ran.stdout.rstrip().rpartition("\n")[2]
    return 0 if ran.returncode == 0 and f" {len(failed)} passed" in summary else RED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
