"""A copy of the channel's log, taken while it is written: what Kafka once showed must still be there in the end."""

from __future__ import annotations

import threading
import time

from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.errors import KafkaAdapterError
from statechannel.kafka.tail import PartitionTail
from statechannel.protocol.log import RecordRead, Topic


class LogCopy:
    """Follows each partition of the log in a thread of its own, through every outage."""

    def __init__(self, address: str, channel: str, partitions: int = 1) -> None:
        self._client = ClientSettings(address, client_id="faults-copy")
        self._channel = channel
        self.partitions: list[list[RecordRead]] = [[] for _ in range(partitions)]
        self.seen_ns: list[list[int]] = [[] for _ in range(partitions)]
        self.troubles: list[str] = []
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(number,), name=f"log-copy-{number}", daemon=True)
            for number in range(partitions)
        ]

    @property
    def records(self) -> list[RecordRead]:
        """All so far, one partition after the other."""
        return [record for records in self.partitions for record in list(records)]

    def seen(self) -> list[tuple[RecordRead, int]]:
        """All so far, each with the monotonic time at which it was read."""
        return [pair for parts in zip(self.partitions, self.seen_ns, strict=True) for pair in zip(*parts, strict=False)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(30)

    def _run(self, partition: int) -> None:
        records, seen_ns = self.partitions[partition], self.seen_ns[partition]
        while not self._stop.is_set():
            try:
                with PartitionTail(
                    self._client, Topic.CHANNEL, self._channel, partition, group_id=f"{self._channel}-copy"
                ) as tail:
                    start = records[-1].offset + 1 if records else 0
                    for batch in tail.follow(start, stop=self._stop.is_set):
                        seen_ns.extend([time.monotonic_ns()] * len(batch))
                        records.extend(batch)
            except KafkaAdapterError as error:
                self.troubles.append(f"{time.monotonic():.1f} {error}")
                time.sleep(0.5)
