"""`python -m tests.http_retries`: calls sent again at any broker while brokers die; each acts once, or this fails."""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from pathlib import Path

from statechannel.embedded import KafkaServer
from tests.http_retries.calls import counts
from tests.http_retries.run import run_calls
from tests.support.kafka_lanes import Kafka, embedded_options


def main() -> int:
    """Run; 1 if a rule was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.http_retries", description=__doc__)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=16, help="clients")
    parser.add_argument("--kill-every", type=float, default=8.0, metavar="SECONDS")
    parser.add_argument("--planted", action="store_true", help="each attempt has a key of its own: this has to fail")
    options = parser.parse_args()
    logging.disable(logging.INFO)
    with tempfile.TemporaryDirectory() as folder:
        server = KafkaServer(Path(folder) / "kafka", options=embedded_options())
        server.start()
        try:
            result = run_calls(
                Kafka(server.bootstrap_servers, "the embedded broker"),
                "retries",
                Path(folder),
                calls=options.calls,
                seed=options.seed,
                at_once=options.at_once,
                kill_every_s=options.kill_every,
                plant_new_keys=options.planted,
            )
        finally:
            server.stop()
    for name, count in counts(result.calls).items():
        print(f"{name}: {count:,}")
    print(f"attempts without an end: {dict(result.troubles)}")
    print(f"brokers killed: {result.kills}; {result.took_s:.0f} s")
    for line in result.broken[:20]:
        print(line, file=sys.stderr)
    print(f"broken rules: {len(result.broken)}")
    return 1 if result.broken else 0


if __name__ == "__main__":
    sys.exit(main())
