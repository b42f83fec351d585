"""A copy of the channel's log, taken while it is written: what Kafka once showed must still be there in the end."""

from __future__ import annotations

import threading
import time

from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.errors import KafkaAdapterError
from statechannel.kafka.tail import PartitionTail
from statechannel.protocol.log import RecordRead, Topic


class LogCopy:
    """Follows the log in a thread of its own, through every outage."""

    def __init__(self, address: str, channel: str) -> None:
        self._client = ClientSettings(address, client_id="faults-copy")
        self._channel = channel
        self.records: list[RecordRead] = []
        self.troubles: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log-copy", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(30)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with PartitionTail(
                    self._client, Topic.CHANNEL, self._channel, 0, group_id=f"{self._channel}-copy"
                ) as tail:
                    start = self.records[-1].offset + 1 if self.records else 0
                    for batch in tail.follow(start, stop=self._stop.is_set):
                        self.records.extend(batch)
            except KafkaAdapterError as error:
                self.troubles.append(f"{time.monotonic():.1f} {error}")
                time.sleep(0.5)
