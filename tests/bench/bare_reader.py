"""A process that consumes a topic with the library's client settings and drops what it reads.

`python -m tests.bench.bare_reader BOOTSTRAP TOPIC`
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, TopicPartition

from statechannel.kafka.client_settings import ClientSettings
from tests.bench.measure import ROOT


def main(bootstrap: str, topic: str) -> None:
    consumer = Consumer(ClientSettings(bootstrap).consumer_config("bench-bare"))
    consumer.assign([TopicPartition(topic, 0, 0)])
    print("up", flush=True)
    while True:
        consumer.poll(10)


@contextmanager
def bare_readers(count: int, bootstrap: str, topic: str) -> Iterator[None]:
    """So many of them; killed at the end of the block."""
    command = [sys.executable, "-m", "tests.bench.bare_reader", bootstrap, topic]
    running = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    try:
        for process in running:
            if process.stdout is None or process.stdout.readline() != "up\n":
                raise RuntimeError(f"a bare reader ended with code {process.wait()}")
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
