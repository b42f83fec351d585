"""Debts: keys that a reader of the cleaned log may see wrongly until a clean record settles them (protocol.md section 3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from statechannel.protocol.keys import KeyState


class Debt:
    """An open debt of one key.

    Attributes:
        since_offset: The record that began it.
        newest_offset: The newest unclean record; for a debt that a clean record began, the offset that settled before.
        highest_version: Highest version of an unclean record since; -1 if none has one.
        seen_s: When this process noticed it, by its monotonic clock; None before. Verdicts do not depend on it.
    """

    __slots__ = ("highest_version", "newest_offset", "seen_s", "since_offset")

    def __init__(self, since_offset: int, newest_offset: int, highest_version: int) -> None:
        self.since_offset = since_offset
        self.newest_offset = newest_offset
        self.highest_version = highest_version
        self.seen_s: float | None = None


class Debts:
    """All open debts of a partition, the oldest first."""

    __slots__ = ("open",)

    def __init__(self) -> None:
        self.open: dict[KeyState, Debt] = {}

    def unclean(self, key: KeyState, offset: int, version: int) -> None:
        """Note an unclean record (rejected, undecodable, duplicate, stale assert): after compaction it hides older records."""
        debt = self.open.get(key)
        if debt is None:
            self.open[key] = Debt(offset, offset, version)
            return
        debt.newest_offset = offset
        debt.highest_version = max(debt.highest_version, version)

    def clean(self, key: KeyState, offset: int, covers: int, version: int) -> None:
        """Note an accepted proposal or an equal assert: it settles its key if its `covers` is high enough."""
        debt = self.open.get(key) if self.open else None
        covers_settled = covers >= key.settled
        if debt is None:
            if covers_settled:
                key.settled = offset
            else:
                self.open[key] = Debt(offset, key.settled, -1)
        elif covers_settled and (covers >= debt.newest_offset or version > debt.highest_version):
            key.settled = offset
            del self.open[key]

    def settles(self, key: KeyState, covers: int, version: int) -> bool:
        """Whether a clean record, if it came now, would settle its key."""
        debt = self.open.get(key)
        return covers >= key.settled and (
            debt is None or covers >= debt.newest_offset or version > debt.highest_version
        )

    @property
    def oldest(self) -> Debt | None:
        return next(iter(self.open.values()), None)
