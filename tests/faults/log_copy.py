"""A copy of the channel's log, taken while it is written: what Kafka once showed must still be there in the end."""

import asyncio
import threading
import time
from bisect import bisect_left
from operator import attrgetter

from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.errors import KafkaAdapterError
from statechannel.kafka.tail import PartitionTail
from statechannel.protocol.log import RecordRead, Topic

LOOK_S = 0.05


class LogCopy:
    """Follows each partition of the log in a thread of its own, through every outage.

    Attributes:
        branches: What was read before each truncation, as `seen` has it.
    """

    def __init__(self, address: str, channel: str, partitions: int = 1) -> None:
        self._client = ClientSettings(address, client_id="faults-copy")
        self._channel = channel
        self.partitions: list[list[RecordRead]] = [[] for _ in range(partitions)]
        self.seen_ns: list[list[int]] = [[] for _ in range(partitions)]
        self.branches: list[list[tuple[RecordRead, int]]] = []
        self.troubles: list[str] = []
        self._held: dict[int, int | None] = {}
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

    async def branch(self, partition: int, end: int) -> None:
        """Kafka is about to truncate a partition that ends here: read it to its end, and no further before `cut` says where."""
        records = self.partitions[partition]
        while not self._stop.is_set() and (not records or records[-1].offset < end - 1):  # noqa: ASYNC110 - another thread
            await asyncio.sleep(LOOK_S)
        self._held[partition] = None
        self.branches.append(self.seen())

    def cut(self, partition: int, offset: int) -> None:
        """Read on from this offset, in place of what was there before."""
        self._held[partition] = offset

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(30)

    def _run(self, partition: int) -> None:
        records, seen_ns = self.partitions[partition], self.seen_ns[partition]
        while not self._stop.is_set():
            if partition in self._held:
                offset = self._held[partition]
                if offset is None:
                    time.sleep(LOOK_S)
                    continue
                kept = bisect_left(records, offset, key=attrgetter("offset"))
                del records[kept:], seen_ns[kept:], self._held[partition]
            try:
                with PartitionTail(
                    self._client, Topic.CHANNEL, self._channel, partition, group_id=f"{self._channel}-copy"
                ) as tail:
                    start = records[-1].offset + 1 if records else 0
                    for batch in tail.follow(start, stop=lambda: self._stop.is_set() or partition in self._held):
                        seen_ns.extend([time.monotonic_ns()] * len(batch))
                        records.extend(batch)
            except KafkaAdapterError as error:
                self.troubles.append(f"{time.monotonic():.1f} {error}")
                time.sleep(0.5)
