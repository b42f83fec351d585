"""Closing marks: a namespace that is being deleted answers no lookups, until its mark expires by the log's own time.

The mark is a control record in the namespace's partition, `!closing/<namespace>` with `for_ms`; nobody judges it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from statechannel.core.codec import CLOSING_PREFIX

if TYPE_CHECKING:
    from statechannel.core.engine import Engine


class ClosingMarks:
    """The marks that were read and have not expired."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._until_ms: dict[str, int] = {}

    def read(self, key: bytes, value: bytes, timestamp_ms: int) -> None:
        """Take a mark in; one that is malformed or too long is no mark."""
        name = key.removeprefix(CLOSING_PREFIX).decode(errors="replace")
        try:
            for_ms = orjson.loads(value).get("for_ms", 0)
        except (orjson.JSONDecodeError, AttributeError):
            return
        if type(for_ms) is int and 0 < for_ms <= self._engine.config.closing_mark_s * 1000:
            self._until_ms[name] = timestamp_ms + for_ms

    def forget(self, namespace: str) -> None:
        """The namespace was deleted."""
        self._until_ms.pop(namespace, None)

    def holds(self, namespace: str) -> bool:
        """Whether the namespace is being deleted."""
        until_ms = self._until_ms.get(namespace)
        if until_ms is None:
            return False
        engine = self._engine
        if engine.replicas[engine.partition_of(namespace)].timestamp_ms >= until_ms:
            del self._until_ms[namespace]
            return False
        return True
