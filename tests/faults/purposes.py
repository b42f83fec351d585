"""What a connection to Kafka is for, read from the requests that pass: which API on which topic.

All clients of a broker have one client id, and a member has several connections to a node: a producer's, one of each
consumer, one to the group's coordinator. A fault that cuts one of them apart has to know which is which.
"""

import struct
from collections.abc import Mapping
from enum import StrEnum

_SIZE = struct.Struct(">i")
_API_KEY = struct.Struct(">h")
_PRODUCE, _FETCH = 0, 1
_GROUP_APIS = {11, 12, 13, 14}  # JoinGroup, Heartbeat, LeaveGroup, SyncGroup
FRAME_READ_BYTES = 8_192
"""Only so much of a request is searched for a topic: it is named near the front, the records come behind."""


class Purpose(StrEnum):
    """What a connection is used for."""

    WRITE_CHANNEL = "write-channel"
    WRITE_REGISTRY = "write-registry"
    READ_CHANNEL = "read-channel"
    READ_REGISTRY = "read-registry"
    READ_REQUESTS = "read-requests"
    ELECTION = "election"


_BY_API = {
    (_PRODUCE, "channel"): Purpose.WRITE_CHANNEL,
    (_PRODUCE, "registry"): Purpose.WRITE_REGISTRY,
    (_FETCH, "channel"): Purpose.READ_CHANNEL,
    (_FETCH, "registry"): Purpose.READ_REGISTRY,
    (_FETCH, "requests"): Purpose.READ_REQUESTS,
}


def topic_patterns(topics: Mapping[str, tuple[str, bytes]]) -> dict[bytes, str]:
    """Bytes by which a request names a topic.

    Args:
        topics: Role to name and id. Older versions of a request have the name with its length, newer ones the id.
    """
    patterns: dict[bytes, str] = {}
    for role, (name, topic_id) in topics.items():
        encoded = name.encode()
        patterns[_API_KEY.pack(len(encoded)) + encoded] = role
        patterns[bytes([len(encoded) + 1]) + encoded] = role
        patterns[topic_id] = role
    return patterns


class RequestScanner:
    """Takes the bytes that a client sends on one connection and keeps the purposes seen so far.

    Attributes:
        purposes: Grows only: a fetch session names a topic once, and not again while nothing changes.
    """

    def __init__(self, patterns: Mapping[bytes, str]) -> None:
        self._patterns = patterns
        self._head = bytearray()
        self._missing_bytes = 0
        self.purposes: set[Purpose] = set()

    def feed(self, data: bytes) -> None:
        """Take in what came next; requests may be cut anywhere."""
        view = memoryview(data)
        while view:
            if self._missing_bytes == 0:
                take = min(_SIZE.size - len(self._head), len(view))
                self._head += view[:take]
                view = view[take:]
                if len(self._head) < _SIZE.size:
                    return
                self._missing_bytes = _SIZE.unpack(self._head)[0]
                self._head.clear()
                continue
            take = min(self._missing_bytes, len(view))
            room = max(0, FRAME_READ_BYTES - len(self._head))
            self._head += view[: min(take, room)]
            self._missing_bytes -= take
            view = view[take:]
            # A large request counts as soon as its front is there: the gate must hold the rest of it.
            if self._missing_bytes == 0 or len(self._head) >= FRAME_READ_BYTES:
                self._read_request(bytes(self._head))
            if self._missing_bytes == 0:
                self._head.clear()

    def _read_request(self, frame: bytes) -> None:
        if len(frame) < _API_KEY.size:
            return
        api = _API_KEY.unpack_from(frame)[0]
        if api in _GROUP_APIS:
            self.purposes.add(Purpose.ELECTION)
        elif api in (_PRODUCE, _FETCH):
            for pattern, role in self._patterns.items():
                purpose = _BY_API.get((api, role))
                if purpose is not None and purpose not in self.purposes and pattern in frame:
                    self.purposes.add(purpose)
