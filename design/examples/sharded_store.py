# ruff: noqa: ARG002
"""A store with one shard a bundle, in a SQLite file that all brokers share: no write is lost when a bundle moves or is split."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from statechannel.api import BrokerHooks, BundleRange

TABLES = """
CREATE TABLE IF NOT EXISTS shard (bundle TEXT PRIMARY KEY, generation INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS entry (bundle TEXT, topic TEXT, value TEXT, PRIMARY KEY (bundle, topic));
"""


class NotServedError(Exception):
    """The client looks the topic up again, and then tries again."""


class ShardedStore(BrokerHooks):
    """The shards that this broker serves."""

    def __init__(self, path: str) -> None:
        self._db = sqlite3.connect(path, isolation_level="IMMEDIATE")
        self._db.executescript(TABLES)
        self._serving: dict[str, int] = {}

    # --- for clients ----------------------------------------------------------------------------------------------------

    def put(self, bundle: str, topic: str, value: str) -> None:
        with self._fenced(bundle) as db:
            db.execute("INSERT OR REPLACE INTO entry VALUES (?, ?, ?)", (bundle, topic, value))

    def get(self, bundle: str, topic: str) -> str | None:
        with self._fenced(bundle) as db:
            row = db.execute("SELECT value FROM entry WHERE (bundle, topic) = (?, ?)", (bundle, topic)).fetchone()
        return None if row is None else row[0]

    def _fenced(self, bundle: str) -> AbstractContextManager[sqlite3.Connection]:
        """A transaction, if nobody owns the shard by a higher generation."""
        if bundle not in self._serving:
            raise NotServedError(f"{bundle} is not served here, or is being split")
        mine = (self._serving[bundle], bundle)
        if not self._db.execute(
            "UPDATE shard SET generation = ?1 WHERE bundle = ?2 AND generation = ?1", mine
        ).rowcount:
            self._db.rollback()
            raise NotServedError(f"{bundle} has another owner")
        return self._db

    # --- hooks ----------------------------------------------------------------------------------------------------------

    async def on_own(self, bundle: str, generation: int) -> None:
        """Fence the owner before; a bundle without a shard is new, or part of a bundle that has one."""
        with self._exclusive() as db:
            known = self._generation_of(bundle)
            if known is not None and known > generation:
                raise RuntimeError(f"{bundle} is owned by generation {known}, which is above {generation}")
            if known is None:
                self._copy_from_parent(bundle, generation)
            db.execute("INSERT OR REPLACE INTO shard VALUES (?, ?)", (bundle, generation))

    def _copy_from_parent(self, bundle: str, generation: int) -> None:
        wanted = BundleRange.parse(bundle)
        shards = [BundleRange.parse(key) for (key,) in self._db.execute("SELECT bundle FROM shard")]
        parents = sorted(
            (shard for shard in shards if shard.covers(wanted)), key=lambda shard: shard.upper - shard.lower
        )
        for parent in parents[:1]:
            if (self._generation_of(parent.key) or 0) >= generation:  # this process was paused, and is late
                raise RuntimeError(f"{parent.key}, of which {bundle} is a part, has another owner")
            entries = self._db.execute("SELECT topic, value FROM entry WHERE bundle = ?", (parent.key,)).fetchall()
            mine = [(bundle, topic, value) for topic, value in entries if wanted.contains(topic)]
            self._db.executemany("INSERT OR REPLACE INTO entry VALUES (?, ?, ?)", mine)

    async def on_serve(self, bundle: str, generation: int) -> None:
        self._serving[bundle] = generation

    async def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        self._serving.pop(bundle, None)

    async def on_split(self, parent: str, children: Sequence[str], generation: int) -> None:
        """From here on the parent takes no writes; `on_own` of the children copies what it has."""
        self._serving.pop(parent, None)
        with self._exclusive():
            held = self._generation_of(parent)
            if held is None or held >= generation:  # this process was paused, and is late
                raise RuntimeError(f"{parent} has another owner, or was split by it")
            # What lies within a bundle that is served was left by a split that was given up, perhaps of other parts.
            keys = [key for (key,) in self._db.execute("SELECT bundle FROM shard") if key != parent]
            whole = BundleRange.parse(parent)
            self._drop([key for key in keys if whole.covers(BundleRange.parse(key))], generation)

    async def on_split_done(self, parent: str, children: Sequence[str], generation: int) -> None:
        with self._exclusive():
            self._drop([parent], generation)

    def _drop(self, bundles: Sequence[str], generation: int) -> None:
        """Drop shards of smaller generations: a hook that comes late finds those of another owner."""
        for bundle in bundles:
            old = (bundle, generation)
            if self._db.execute("DELETE FROM shard WHERE bundle = ? AND generation < ?", old).rowcount:
                self._db.execute("DELETE FROM entry WHERE bundle = ?", (bundle,))

    def _generation_of(self, bundle: str) -> int | None:
        row = self._db.execute("SELECT generation FROM shard WHERE bundle = ?", (bundle,)).fetchone()
        return None if row is None else row[0]

    @contextmanager
    def _exclusive(self) -> Iterator[sqlite3.Connection]:
        """A transaction that no other process writes beside, from its first line on."""
        with self._db as db:
            db.execute("BEGIN IMMEDIATE")
            yield db
