"""What failed, once more and one after the other: `python -m tests.support.again EXIT-CODE-OF-PYTEST`, called by `make test`.

Three workers with real brokers on two cores starve one of them now and then, and it does what a broker does that hears nothing of
its cluster. What fails because the code is wrong fails here as well.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

FAILED_MAX = 5
"""More than these are no accident."""
LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")


def main(argv: Sequence[str]) -> int:
    """Ends as pytest does; with its own code where there is nothing to try again."""
    code = int(argv[0])
    failed = sorted(json.loads(LAST_FAILED.read_text())) if code == 1 and LAST_FAILED.exists() else []
    if not 0 < len(failed) <= FAILED_MAX:
        return code
    print(f"\nonce more, with the machine to themselves: {', '.join(failed)}", flush=True)
    return subprocess.run([sys.executable, "-m", "pytest", *failed], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
