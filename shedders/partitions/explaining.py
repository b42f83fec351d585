"""What goals say of themselves, for commands and pages."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from shedders.partitions.goals.broker_goal import WORDS
from shedders.partitions.registry import DEFAULTS, OF_MODES, available, find
from shedders.partitions.request import Mode

if TYPE_CHECKING:
    from shedders.partitions.goals.goal import Goal

MODES: Final = {
    "brokers-leave": (Mode.REMOVE_BROKERS.value, "brokers going offline"),
    "offline-replicas": (Mode.FIX_OFFLINE.value,),
    "demotion": (Mode.DEMOTE.value,),
    "replication-factor": (Mode.REPLICATION_FACTOR.value,),
}
"""With which modes the goals come that nobody asks for by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """One goal.

    Attributes:
        share: Its range where none is asked for.
        share_of: What the range is a part of; empty: it has none.
        needs: Which figures of partitions it goes by.
        modes: By which modes it is taken where no goals are asked for.
        with_mode: Whether it comes with its mode, and is not asked for.
        origin: The module that it is from.
        about: The first line of what it says.
        text: All of it.
    """

    name: str
    hard: bool
    unit: str
    share: float
    share_of: str
    needs: tuple[str, ...]
    modes: tuple[str, ...]
    with_mode: bool
    origin: str
    about: str
    text: str

    @property
    def range_text(self) -> str:
        """The range as people read it."""
        return f"{self.share:g} {self.share_of}" if self.share_of else "none"


def every() -> tuple[Explained, ...]:
    """All goals, in the order in which they are worked for, then those that come with a mode."""
    return tuple(_of(one) for one in (*available().values(), *OF_MODES.values()))


def explained(name: str) -> Explained:
    """One goal, by name.

    Raises:
        RequestRefusedError: There is none.
    """
    return _of(OF_MODES[name] if name in OF_MODES else find(name))


def _of(goal: type[Goal]) -> Explained:
    text = inspect.getdoc(goal) or ""
    with_mode = goal.name in MODES
    modes = MODES[goal.name] if with_mode else tuple(mode.value for mode in Mode if goal.name in DEFAULTS[mode])
    modes = ("all modes",) if len(modes) == len(Mode) else modes
    return Explained(
        name=goal.name,
        hard=goal.hard,
        unit=goal.unit,
        share=goal.default_share,
        share_of=goal.share_of,
        needs=tuple(WORDS[one] for one in goal.needs),
        modes=modes,
        with_mode=with_mode,
        origin=goal.__module__,
        about=text.partition("\n")[0],
        text=text,
    )
