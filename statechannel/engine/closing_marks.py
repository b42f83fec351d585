"""Namespaces that are being deleted: their marks on the channel, each of which expires."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from statechannel.protocol.codec import CLOSING_PREFIX

if TYPE_CHECKING:
    from statechannel.engine.context import Context

MARKS_BEFORE_CLEANING = 1_000


class ClosingMarks:
    """The marks that were read and have not expired."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._marks: dict[str, tuple[int, int]] = {}  # offset of the mark, and log time of its end

    def read(self, key: bytes, value: bytes, offset: int, timestamp_ms: int) -> None:
        """Take a mark in; ignore one that is malformed or too long."""
        name = key.removeprefix(CLOSING_PREFIX).decode(errors="replace")
        try:
            for_ms = orjson.loads(value).get("for_ms", 0)
        except (orjson.JSONDecodeError, AttributeError):
            return
        if type(for_ms) is int and 0 < for_ms <= self._context.config.closing_mark_s * 1000:
            self._marks[name] = offset, timestamp_ms + for_ms
            if len(self._marks) > MARKS_BEFORE_CLEANING:
                # In one go: other threads drop ended marks meanwhile.
                marks = list(self._marks.items())
                self._marks = {ns: mark for ns, mark in marks if mark[1] > timestamp_ms}

    def mentions(self, namespace: str) -> bool:
        """Whether there is a mark of the namespace, perhaps one that has ended; from any thread."""
        return namespace in self._marks

    def holds(self, namespace: str) -> bool:
        """Whether the namespace is being deleted; from any thread. A mark that has ended is dropped."""
        mark = self._marks.get(namespace)
        if mark is None:
            return False
        context = self._context
        offset, until_ms = mark
        key = context.key(namespace)
        # A record of the namespace that follows the mark deleted it, or created it again; seen live or by a later join.
        ended = key is not None and key.offset > offset
        if ended or context.replicas[context.partition_of(namespace)].timestamp_ms >= until_ms:
            if self._marks.get(namespace) is mark:  # not one that was read meanwhile
                self._marks.pop(namespace, None)
            return False
        return True
