"""Log lines of the client library, in our format and rate-limited while Kafka is unavailable."""

from __future__ import annotations

import logging
import threading
import time

from statechannel.logger import SafeLogger

EVERY_S = 10.0
KINDS_MAX = 256

kafka_logger = logging.getLogger("statechannel.kafka")
client_logger = kafka_logger.getChild("client")


class OncePerKind(logging.Filter):
    """Passes one line of a kind (its first two words: event and client) every `EVERY_S`, and counts the rest.

    Of a closing member no line passes: its final error says that Kafka is unreachable, and must stay visible.

    Args:
        prefix: Lines that begin otherwise all pass.
    """

    def __init__(self, prefix: str = "") -> None:
        super().__init__()
        self._prefix = prefix
        self._lock = threading.Lock()
        self._passed: dict[str, tuple[float, int]] = {}
        self._closing: frozenset[str] = frozenset()

    def closing(self, client_id: str, *, closes: bool) -> None:
        """The clients of this id close, or new ones open."""
        with self._lock:
            name = {f"[{client_id}"}
            self._closing = self._closing | name if closes else self._closing - name

    def filter(self, record: logging.LogRecord) -> bool:
        """See the class."""
        line = record.getMessage()
        if not line.startswith(self._prefix):
            return True
        kind = " ".join(line.split(maxsplit=2)[:2])
        if kind.partition(" ")[2].rpartition("#")[0] in self._closing:
            return False
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
            record.msg, record.args = f"{line} (and {left_out} like it before)", ()
        return True


class ToStructlog(logging.Handler):
    """Sends these lines to our own log if the embedder has not set up logging."""

    def emit(self, record: logging.LogRecord) -> None:
        """See the class."""
        if not logging.getLogger().handlers:
            SafeLogger(record.name).log(record.levelno, record.getMessage(), exc_info=record.exc_info or None)


once_per_kind = OncePerKind()
client_logger.addFilter(once_per_kind)
kafka_logger.addHandler(ToStructlog())
