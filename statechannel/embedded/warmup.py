"""Preparation of the first start: download of the jars, and the class archive.

`make setup` calls this module. A broker starts without the archive too, only more slowly.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from statechannel.embedded.errors import BrokerStartError, EmbeddedKafkaError
from statechannel.embedded.jars import Say, prepare_jars
from statechannel.embedded.java import Java, archive_path, base_archive_command, base_archive_path, find_java
from statechannel.embedded.layout import BrokerOptions
from statechannel.embedded.server import KafkaServer

_ARCHIVE_TIMEOUT_S = 60.0


def prepare(options: BrokerOptions | None = None, *, say: Say = lambda _: None) -> None:
    """Fill the cache with the jars and the class archive; quick if both are there.

    Raises:
        JavaUnavailableError: No Java 17 or newer.
        JarsUnavailableError: The jars cannot be fetched, or are not the listed ones.
    """
    chosen = options or BrokerOptions()
    java = find_java()
    jars = prepare_jars(chosen.jars, say=say)
    archive = archive_path(java, jars)
    if archive.exists():
        return
    say("starting Kafka once to speed up later starts")
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="warmup-", dir=archive.parent) as scratch:
        fresh = Path(scratch) / archive.name
        try:
            _archive_base(java, Path(scratch))
            server = KafkaServer(Path(scratch) / "data", options=chosen)
            server.start(archive_to=fresh)
            server.stop()
        except (BrokerStartError, subprocess.TimeoutExpired) as error:
            say(f"that failed, so later starts take longer: {error}")
        if fresh.exists():
            # In one step, since another start may look for it at this moment.
            fresh.replace(archive)


def _archive_base(java: Java, scratch: Path) -> None:
    base = base_archive_path(java)
    if base is None or base.exists():
        return
    fresh = scratch / base.name
    command = base_archive_command(java, fresh)
    subprocess.run(command, capture_output=True, timeout=_ARCHIVE_TIMEOUT_S, check=False)
    if fresh.exists():
        fresh.replace(base)


def main() -> int:
    """Prepare the cache and print progress; returns the exit status."""
    began_s = time.monotonic()
    try:
        prepare(say=lambda line: print(f"setup: {line}", flush=True))
    except EmbeddedKafkaError as error:
        print(f"setup: {error}\nhint: {error.hint}", file=sys.stderr)
        return error.exit_code
    print(f"setup: Kafka is ready to start ({time.monotonic() - began_s:.1f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
