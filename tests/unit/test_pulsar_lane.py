"""The lane beside Pulsar, without Pulsar: its jars are the pinned ones or nothing is measured, and its lookups are Pulsar's."""

from __future__ import annotations

import asyncio
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from tests.bench.pulsar import jars, lane
from tests.bench.pulsar.client import (
    CONNECT,
    CONNECTED,
    CONNECTS,
    LOOKUP,
    LOOKUP_RESPONSE,
    PING,
    PONG,
    WINDOW,
    BaseCommand,
    ask_all,
    frame,
    lookup_frame,
    topics_of,
)
from tests.support.waits import WAIT_S

FAILED = 2


def test_jars_that_are_not_the_pinned_ones_are_not_measured_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "pulsar-broker-4.2.4.jar").write_bytes(b"another")
    monkeypatch.setenv(jars.JARS_VARIABLE, str(tmp_path))
    assert lane.run() == []
    said = capsys.readouterr().err
    assert "nothing was measured" in said
    assert str(tmp_path) in said


def test_the_digest_of_jars_is_that_of_their_names_and_contents(tmp_path: Path):
    for name in ("b.jar", "a.jar", "notes.txt"):
        (tmp_path / name).write_bytes(name.encode())
    first = jars.listing(tmp_path)
    assert [line.split()[1] for line in first.splitlines()] == ["a.jar", "b.jar"]
    (tmp_path / "a.jar").write_bytes(b"changed")
    assert jars.listing(tmp_path) != first


def test_each_bundle_gets_a_topic_whose_hash_lies_in_it():
    bounds = ["0x00000000", "0x40000000", "0x80000000", "0xffffffff"]
    topics = topics_of("tenant/namespace", bounds)
    for topic, (low, high) in zip(topics, pairwise(bounds), strict=True):
        assert topic.startswith("persistent://tenant/namespace/")
        assert int(low, 16) <= zlib.crc32(topic.encode()) <= int(high, 16)


def test_a_lookup_is_framed_as_the_protocol_has_it():
    # Lengths, type 23, and in field 23 the topic and the request's number, written by hand from the protocol's definition.
    assert lookup_frame(7, "t") == bytes.fromhex("0000000e 0000000a 0817 ba0105 0a0174 1007")


class Broker(asyncio.Protocol):
    """Answers lookups as a broker does: pings first, fails the first lookup once, sends answers in pieces."""

    def __init__(self, url: str, at_once: list[int]) -> None:
        self._url = url
        self._unread = b""
        self._failed = self._ponged = False
        self._waiting: list[int] = []
        self._at_once = at_once

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._unread += data
        while len(self._unread) >= 4 and len(self._unread) >= (end := 4 + int.from_bytes(self._unread[:4], "big")):
            self._take(BaseCommand.FromString(self._unread[8:end]))
            self._unread = self._unread[end:]
        waiting, self._waiting = self._waiting, []
        self._at_once.append(len(waiting))
        for number in waiting:
            self._answer(number)

    def _take(self, command: object) -> None:
        if command.type == CONNECT:
            self._transport.write(frame(BaseCommand(type=CONNECTED)) + frame(BaseCommand(type=PING, ping={})))
        elif command.type == PONG:
            self._ponged = True
        elif command.type == LOOKUP:
            self._waiting.append(command.lookupTopic.request_id)

    def _answer(self, number: int) -> None:
        fails = number == 0 and not self._failed
        self._failed = self._failed or fails
        facts = (
            {"response": FAILED, "message": "not yet"}
            if fails
            else {"response": CONNECTS, "brokerServiceUrl": self._url}
        )
        answer = frame(BaseCommand(type=LOOKUP_RESPONSE, lookupTopicResponse={"request_id": number, **facts}))
        assert self._ponged
        for piece in (answer[:6], answer[6:]):
            self._transport.write(piece)


@contextmanager
def broker(url: str, at_once: list[int]) -> Iterator[int]:
    """Its port."""
    loop, ready, ports = asyncio.new_event_loop(), threading.Event(), []

    def serve() -> None:
        server = loop.run_until_complete(loop.create_server(lambda: Broker(url, at_once), "127.0.0.1", 0))
        ports.append(server.sockets[0].getsockname()[1])
        ready.set()
        loop.run_forever()
        server.close()
        loop.run_until_complete(server.wait_closed())
        loop.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        assert ready.wait(WAIT_S)
        yield ports[0]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(WAIT_S)


def test_every_lookup_gets_an_owner_from_every_broker():
    topics = [f"persistent://tenant/namespace/{number}" for number in range(3 * WINDOW)]
    at_once: list[int] = []
    with broker("pulsar://a", at_once) as first, broker("pulsar://b", at_once) as second:
        storm = ask_all([first, second], topics)
    assert [set(answers.owners) for answers in storm.answers] == [{"pulsar://a"}, {"pulsar://b"}]
    assert [len(answers.owners) for answers in storm.answers] == [len(topics)] * 2
    assert [answers.repeated for answers in storm.answers] == [1, 1]
    assert storm.ms > 0
    assert max(at_once) <= WINDOW
