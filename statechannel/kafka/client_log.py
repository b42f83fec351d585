"""The client library's own log lines, without the flood that it makes while Kafka is away."""

from __future__ import annotations

import logging
import threading
import time

EVERY_S = 10.0
KINDS_MAX = 256

client_logger = logging.getLogger("statechannel.kafka.client")


class OncePerKind(logging.Filter):
    """Lets one line of a kind (its first two words: what, and which client) pass every `EVERY_S`, and counts the rest."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._passed: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """See the class."""
        said = record.getMessage()
        kind = " ".join(said.split(maxsplit=2)[:2])
        now_s = time.monotonic()
        with self._lock:
            at_s, left_out = self._passed.get(kind, (float("-inf"), 0))
            if now_s - at_s < EVERY_S:
                self._passed[kind] = at_s, left_out + 1
                return False
            if len(self._passed) >= KINDS_MAX:
                self._passed.clear()
            self._passed[kind] = now_s, 0
        if left_out:
            record.msg, record.args = f"{said} (and {left_out} like it before)", ()
        return True


client_logger.addFilter(OncePerKind())
