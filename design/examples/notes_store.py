# ruff: noqa: ARG002
"""Notes by topic, in a SQLite file that all brokers share: the storage of notes_fastapi.py and notes_aiohttp.py."""

import sqlite3
from collections.abc import Sequence

from statechannel.api import Admission, BrokerHooks

TABLES = """
CREATE TABLE IF NOT EXISTS fence (bundle TEXT PRIMARY KEY, generation INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS note (topic TEXT PRIMARY KEY, text TEXT NOT NULL);
"""


class NotesStore(BrokerHooks):
    """Keeps no table of what is served here: each request asks `guard`, and the generation that it returns fences the write."""

    def __init__(self, path: str) -> None:
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.executescript(TABLES)

    async def on_own(self, bundle: str, generation: int) -> None:
        """From here on smaller generations write no more."""
        raised = self._db.execute(
            "INSERT INTO fence VALUES (?1, ?2)"
            " ON CONFLICT (bundle) DO UPDATE SET generation = ?2 WHERE generation <= ?2",
            (bundle, generation),
        )
        if not raised.rowcount:  # this process was paused, and is late
            raise RuntimeError(f"{bundle} has another owner")

    async def on_split(self, parent: str, children: Sequence[str], generation: int) -> None:
        """The parent takes no more writes; if the split is given up, `on_own` of the parent follows."""
        self._db.execute("DELETE FROM fence WHERE bundle = ? AND generation < ?", (parent, generation))

    def put(self, admitted: Admission, topic: str, text: str) -> bool:
        """Whether it was written; False: another broker has taken over since."""
        written = self._db.execute(
            "INSERT OR REPLACE INTO note SELECT ?, ? FROM fence WHERE bundle = ? AND generation = ?",
            (topic, text, *admitted),
        )
        return bool(written.rowcount)

    def get(self, topic: str) -> str | None:
        row = self._db.execute("SELECT text FROM note WHERE topic = ?", (topic,)).fetchone()
        return None if row is None else row[0]
