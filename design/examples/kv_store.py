# ruff: noqa: ARG002
"""The storage of kv_server.py: a shard per bundle, as a folder that all brokers reach, and in its owner's memory.

Each owner writes a log of its own, which begins with what the newest log before it had. Nobody holds a lock, so that an owner
that is paused keeps nobody waiting. What keeps its late writes out is an order:

- a new owner first raises the fence (a file named by its generation), and then reads;
- a writer first appends, and then looks at the fence. If it is higher than the writer's generation, the write was too late for
  the new owner to read, or it was not; the writer does not know, and acknowledges nothing. The client tries again at the new one;
- a reader likewise first reads, and then looks at the fence: where it is not higher, nobody has acknowledged a newer write.

The last write of a client is remembered for RETRY_S, in which it may be tried again, and of at most CLIENTS_MAX clients: beyond
that, writes of further clients are refused until some are forgotten.

On one machine, or a file system whose folders are coherent; a database does the same by a condition on the generation.
"""

import json
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from statechannel.api import BlockingBrokerHooks

CLIENTS_MAX = 10_000
RETRY_S = 600.0
"""Longer than any client tries (the brokers' clocks may differ by the rest): later its write would be taken a second time."""


class FullError(Exception):
    """More clients write than are remembered: the client tries again later."""


class FencedError(Exception):
    """Another broker owns the shard, or this one does by another generation: the client looks the owner up again."""


class Shard:
    """The entries of a bundle: value and version of each key, with the number of each client's last write.

    Raises:
        FencedError: A higher generation has raised the fence.
    """

    def __init__(self, folder: Path, generation: int) -> None:
        self.generation = generation
        self._folder = folder
        self._lock = threading.Lock()
        self._open = True
        self._entries: dict[str, tuple[str, int]] = {}
        self._clients: dict[str, tuple[int, int, float]] = {}  # the one that wrote last is the last
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{generation:020}.fence").touch()
        while not self._read_newest():
            pass
        draft, path = folder / f"{generation:020}.draft", folder / f"{generation:020}.log"
        self._log = draft.open("wb", buffering=0)
        self._append({"entries": self._entries, "clients": self._clients})
        draft.replace(path)
        self._check_fence()
        for old in folder.iterdir():
            if old.stem < path.stem:
                old.unlink(missing_ok=True)

    def _read_newest(self) -> bool:
        """Whether it is there: a later owner may have dropped it meanwhile, and then stands in the fence."""
        logs = sorted(self._folder.glob("*.log"))
        try:
            lines = logs[-1].read_bytes().split(b"\n")[:-1] if logs else []  # what was cut off by a kill is no line
        except FileNotFoundError:
            self._check_fence()
            return False
        for line in lines:
            self._take(json.loads(line))
        return True

    def _take(self, change: dict[str, Any]) -> None:
        self._entries |= {key: (value, version) for key, (value, version) in change["entries"].items()}
        for client, (write, version, at_s) in change["clients"].items():
            self._clients.pop(client, None)
            self._clients[client] = write, version, at_s

    def _forget(self, now_s: float) -> None:
        """Drop clients whose last write is not tried again any more, the longest silent first."""
        while self._clients:
            client, (_, _, at_s) = next(iter(self._clients.items()))
            if now_s - at_s < RETRY_S:
                return
            del self._clients[client]

    def _append(self, change: dict[str, Any]) -> None:
        line, end = json.dumps(change).encode() + b"\n", self._log.seek(0, os.SEEK_END)
        try:
            while line:
                line = line[self._log.write(line) :]
            os.fsync(self._log.fileno())
        except OSError:
            self._open = False  # half a line would spoil the next one
            self._log.truncate(end)
            self._open = True
            raise

    def _check_fence(self) -> None:
        highest = max(int(path.stem) for path in self._folder.glob("*.fence"))
        if highest > self.generation:
            raise FencedError(f"generation {highest} owns the shard, which is above {self.generation}")

    def get(self, key: str) -> tuple[str, int] | None:
        """Value and version of a key as of this moment; None: there is no such key."""
        entry = self._entries.get(key)
        if not self._open:
            raise FencedError("the shard was released")
        self._check_fence()
        return entry

    def put(self, key: str, value: str, client: str, write: int) -> int:
        """Take a write once, however often it comes; the version of the key that it made.

        Args:
            write: Number of the write: grows from one write of the client to the next.

        Raises:
            FullError: Too many clients write.
        """
        with self._lock:
            if not self._open:
                raise FencedError("the shard was released")
            last, version, _ = self._clients.get(client, (-1, 0, 0.0))
            if write <= last:
                return version
            now_s = time.time()
            self._forget(now_s)
            if client not in self._clients and len(self._clients) >= CLIENTS_MAX:
                raise FullError(f"{CLIENTS_MAX} clients have written within {RETRY_S:g} s")
            version = self._entries.get(key, ("", 0))[1] + 1
            change = {"entries": {key: (value, version)}, "clients": {client: (write, version, now_s)}}
            self._append(change)
            try:
                self._check_fence()
            except FencedError:
                self._open = False  # its memory is not what the new owner has
                raise
            self._take(change)
            return version

    def close(self) -> None:
        with self._lock:
            self._open = False
            self._log.close()


class KvStore(BlockingBrokerHooks):
    """The shards that this broker has open. Whether it may use them `StateChannel.guard` says."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._shards: dict[str, Shard] = {}

    def shard(self, bundle: str, generation: int) -> Shard:
        shard = self._shards.get(bundle)
        if shard is None or shard.generation != generation:
            raise FencedError(f"{bundle} is not open here by generation {generation}")
        return shard

    def on_own(self, bundle: str, generation: int) -> None:
        """Fence the owner before, and read what it has written. Raises if a later owner was quicker."""
        self.on_release(bundle, generation, None)
        self._shards[bundle] = Shard(self._folder / bundle, generation)

    def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        shard = self._shards.pop(bundle, None)
        if shard is not None:
            shard.close()  # waits for the write under way

    def on_split(self, parent: str, children: Sequence[str], generation: int) -> None:
        raise RuntimeError("this store cannot split a shard; sharded_store.py can")
