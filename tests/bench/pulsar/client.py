"""Clients of a Pulsar cluster, cheap enough not to be what is measured: lookups by the binary protocol, all else over HTTP.

A lookup is one small frame each way. All of a storm go over one connection for each broker, made and encoded before the
clock starts, so that a lookup costs this process some tens of microseconds. That is the least a client can ask of Pulsar.
"""

import asyncio
import struct
import time
import zlib
from bisect import bisect_right
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

CLUSTER = TENANT = "bench"
HASHES = 2**32
ADMIN_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 120.0
RETRY_S = 0.02
WINDOW = 120
"""Lookups of one broker that are in flight at once. A broker writes an assignment for each, and a record for each bundle
that it takes over. Once 500 of these wait, Pulsar blocks the thread that adds another, and where that is also the thread that
sends them, the broker waits for itself for good. That was seen with 1,024 in flight, and with 256 at brokers just started."""

CONNECT, CONNECTED, PING, PONG, LOOKUP, LOOKUP_RESPONSE = 2, 3, 18, 19, 23, 24
CONNECTS = 1
"""An answer that names the broker to connect to; the others send the client elsewhere, or tell of an error."""
PROTOCOL_VERSION = 19
_LENGTH = struct.Struct(">I")
_LENGTHS = struct.Struct(">II")

_FIELDS: Mapping[str, Mapping[str, tuple[int, str]]] = {
    "CommandConnect": {"client_version": (1, "string"), "protocol_version": (4, "int32")},
    "CommandEmpty": {},
    "CommandLookupTopic": {"topic": (1, "string"), "request_id": (2, "uint64")},
    "CommandLookupTopicResponse": {
        "brokerServiceUrl": (1, "string"),
        "response": (3, "int32"),
        "request_id": (4, "uint64"),
        "message": (7, "string"),
    },
    "BaseCommand": {
        "type": (1, "int32"),
        "connect": (2, "CommandConnect"),
        "ping": (PING, "CommandEmpty"),
        "pong": (PONG, "CommandEmpty"),
        "lookupTopic": (LOOKUP, "CommandLookupTopic"),
        "lookupTopicResponse": (LOOKUP_RESPONSE, "CommandLookupTopicResponse"),
    },
}
"""What is used of the messages of Pulsar's protocol, by name, number and type; what else a broker sends is passed over."""


def _base_command() -> Any:
    """The class of the protocol's outermost message."""
    file = descriptor_pb2.FileDescriptorProto(name="pulsar_lookups.proto", package="pulsar.lookups")
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            added = message.field.add(
                name=field, number=number, label=descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
            )
            if kind in _FIELDS:
                added.type, added.type_name = (
                    descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE,
                    f".pulsar.lookups.{kind}",
                )
            else:
                added.type = descriptor_pb2.FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("pulsar.lookups.BaseCommand"))


BaseCommand = _base_command()


def frame(command: Any) -> bytes:
    """A command as it is sent: its length with and without the field before it."""
    body = command.SerializeToString()
    return _LENGTHS.pack(len(body) + _LENGTH.size, len(body)) + body


def lookup_frame(number: int, topic: str) -> bytes:
    return frame(BaseCommand(type=LOOKUP, lookupTopic={"topic": topic, "request_id": number}))


def topics_of(namespace: str, boundaries: Sequence[str]) -> list[str]:
    """A topic in each bundle, in the order of the bundles.

    Args:
        namespace: With its tenant.
        boundaries: Of the bundles, in hexadecimal, as the admin call gives them.
    """
    lowest = [int(boundary, 16) for boundary in boundaries[:-1]]
    topics: dict[int, str] = {}
    number = 0
    while len(topics) < len(lowest):
        topic = f"persistent://{namespace}/topic-{number}"
        # Pulsar's hash of a topic's complete name; the last bundle contains its upper boundary.
        topics.setdefault(bisect_right(lowest, zlib.crc32(topic.encode())) - 1, topic)
        number += 1
    return [topics[index] for index in range(len(lowest))]


@dataclass(frozen=True, slots=True)
class Answers:
    """What one broker answered.

    Attributes:
        owners: Service URL of the owner of each topic's bundle.
        at_ns: When the last answer was there.
        repeated: Lookups that had to be sent again, for an answer without an owner.
    """

    owners: Sequence[str]
    at_ns: int
    repeated: int


class _Lookups(asyncio.Protocol):
    """Answers on one connection; a lookup that fails is sent again a moment later, as Pulsar's own clients do."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._unread = bytearray()
        self._transport: asyncio.Transport
        self._frames: Sequence[bytes] = ()
        self._sent = 0
        self._owners: dict[int, str] = {}
        self._repeated = 0
        self._last_message = ""
        self.connected: asyncio.Future[None] = self._loop.create_future()
        self._answered: asyncio.Future[int] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment] - TCP
        hello = {"client_version": "bench", "protocol_version": PROTOCOL_VERSION}
        self._transport.write(frame(BaseCommand(type=CONNECT, connect=hello)))

    def connection_lost(self, exc: Exception | None) -> None:
        for waiting in (self.connected, self._answered):
            if waiting is not None and not waiting.done():
                waiting.set_exception(ConnectionError(f"the broker ended the connection: {exc}"))

    def data_received(self, data: bytes) -> None:
        unread = self._unread
        unread += data
        at = 0
        while len(unread) - at >= _LENGTH.size:
            end = at + _LENGTH.size + _LENGTH.unpack_from(unread, at)[0]
            if len(unread) < end:
                break
            length = _LENGTH.unpack_from(unread, at + _LENGTH.size)[0]
            begins = at + _LENGTHS.size
            self._take(BaseCommand.FromString(bytes(unread[begins : begins + length])))
            at = end
        del unread[:at]

    def _take(self, command: Any) -> None:
        if command.type == LOOKUP_RESPONSE:
            self._take_answer(command.lookupTopicResponse)
        elif command.type == PING:
            self._transport.write(frame(BaseCommand(type=PONG, pong={})))
        elif command.type == CONNECTED and not self.connected.done():
            self.connected.set_result(None)

    def _take_answer(self, answer: Any) -> None:
        if answer.response == CONNECTS:
            self._owners[answer.request_id] = answer.brokerServiceUrl
            if self._sent < len(self._frames):
                self._transport.write(self._frames[self._sent])
                self._sent += 1
            if len(self._owners) == len(self._frames) and self._answered is not None and not self._answered.done():
                self._answered.set_result(time.monotonic_ns())
        else:
            self._repeated += 1
            self._last_message = answer.message
            self._loop.call_later(RETRY_S, self._transport.write, self._frames[answer.request_id])

    async def ask(self, frames: Sequence[bytes]) -> Answers:
        """Send these lookups, numbered by their place, and wait for the owner of each."""
        self._frames, self._owners, self._repeated = frames, {}, 0
        self._answered = self._loop.create_future()
        self._sent = min(len(frames), WINDOW)
        self._transport.write(b"".join(frames[: self._sent]))
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                at_ns = await self._answered
        except TimeoutError:
            missing = len(frames) - len(self._owners)
            raise RuntimeError(
                f"{missing} lookups had no owner after {ANSWER_TIMEOUT_S:g} s; the last error was: {self._last_message}"
            ) from None
        return Answers([self._owners[number] for number in range(len(frames))], at_ns, self._repeated)


@asynccontextmanager
async def _connections(ports: Sequence[int]) -> AsyncIterator[list[_Lookups]]:
    loop = asyncio.get_running_loop()
    transports, opened = [], []
    try:
        for port in ports:
            transport, lookups = await loop.create_connection(_Lookups, "127.0.0.1", port)
            transports.append(transport)
            await asyncio.wait_for(lookups.connected, ANSWER_TIMEOUT_S)
            opened.append(lookups)
        yield opened
    finally:
        for transport in transports:
            transport.close()


@dataclass(frozen=True, slots=True)
class Storm:
    """Lookups of the same topics at several brokers at once.

    Attributes:
        began_ns: When the first was sent.
        answers: By broker, in the order of the ports.
        client_s: Processor time of this process.
    """

    began_ns: int
    answers: Sequence[Answers]
    client_s: float

    @property
    def ms(self) -> float:
        """Until the last broker had given its last answer."""
        return (max(answers.at_ns for answers in self.answers) - self.began_ns) / 1e6


def ask_all(ports: Sequence[int], topics: Sequence[str]) -> Storm:
    """Look all topics up at all brokers at once, which has bundles without an owner assigned."""
    frames = [lookup_frame(number, topic) for number, topic in enumerate(topics)]

    async def ask() -> Storm:
        async with _connections(ports) as opened:
            used_s, began_ns = time.process_time(), time.monotonic_ns()
            answers = await asyncio.gather(*(lookups.ask(frames) for lookups in opened))
            return Storm(began_ns, answers, time.process_time() - used_s)

    return asyncio.run(ask())


class Admin:
    """Admin calls to one broker."""

    def __init__(self, port: int) -> None:
        self._client = httpx.Client(
            base_url=f"http://127.0.0.1:{port}/admin/v2",
            follow_redirects=True,
            timeout=ADMIN_TIMEOUT_S,
            trust_env=False,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._client.close()

    def is_ready(self) -> bool:
        """Whether the broker serves."""
        try:
            return self._client.get("/brokers/ready").is_success
        except httpx.TransportError:
            return False

    def brokers(self) -> Sequence[str]:
        """Ids of the living brokers."""
        return self._call("GET", f"/brokers/{CLUSTER}").json()

    def leader(self) -> str:
        """Id of the leader."""
        return str(self._call("GET", "/brokers/leaderBroker").json()["brokerId"])

    def create_tenant(self) -> None:
        self._call("PUT", f"/tenants/{TENANT}", json={"allowedClusters": [CLUSTER]})

    def create(self, namespace: str, bundles: int) -> list[str]:
        """Create a namespace; the boundaries of its bundles."""
        self._call("PUT", f"/namespaces/{namespace}", json={"bundles": {"numBundles": bundles}})
        return list(self._call("GET", f"/namespaces/{namespace}/bundles").json()["boundaries"])

    def transfer(self, namespace: str, bundle: str, to: str) -> None:
        """Transfer a bundle (its two boundaries) to the broker of this id, and wait for it."""
        self._call("PUT", f"/namespaces/{namespace}/{bundle}/unload", params={"destinationBroker": to})

    def _call(self, method: str, path: str, **given: Any) -> httpx.Response:
        answer = self._client.request(method, path, **given)
        if not answer.is_success:
            raise RuntimeError(f"Pulsar refused {method} {path}: {answer.status_code} {answer.text[:300]}")
        return answer
