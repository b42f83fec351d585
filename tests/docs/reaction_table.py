"""The table of reactions, found out by asking the real engine: a state that names it, and hooks that return, raise or hang."""

from collections.abc import Callable
from typing import NamedTuple

from statechannel.engine.commands import Shutdown
from tests.docs.tiny_log import LEFT, NAMESPACE, RIGHT, TinyLog


class Situation(NamedTuple):
    """A row: what is accepted, what this broker is to it, and how to get there (all but the last step)."""

    state: str
    this_broker: str
    before: Callable[[TinyLog], None]
    trigger: Callable[[TinyLog], None]


def _namespace(log: TinyLog) -> None:
    children = [LEFT.rpartition("/")[2], RIGHT.rpartition("/")[2]]
    log.write(NAMESPACE, "Active", children=children)


def _empty(log: TinyLog) -> None:
    _namespace(log)
    log.open()


def _serving(log: TinyLog) -> None:
    _empty(log)
    log.write(LEFT, "Assigning", to="b1")
    log.wait(8)  # long enough to know who is not there


def _draining(log: TinyLog) -> None:
    _serving(log)
    log.hooks_do = "hang"  # so that it does not end before the next assignment comes
    log.command(Shutdown(100.0))


def _former(log: TinyLog) -> None:
    """An earlier process under this id was the owner."""
    _namespace(log)
    log.write(LEFT, "Assigning", to="b1")
    log.write(LEFT, "Assigned", to="b1", by=("b1", "b1-0"))


def _former_then(state: str, to: str | None = None) -> Callable[[TinyLog], None]:
    def before(log: TinyLog) -> None:
        _former(log)
        log.write(LEFT, state, **{"from": "b1", "to": to})

    return before


def _write(name: str, state: str, from_: str | None = None, to: str | None = None) -> Callable[[TinyLog], None]:
    return lambda log: log.write(name, state, **{"from": from_, "to": to})


SITUATIONS = (
    Situation("Assigning", "named", _empty, _write(LEFT, "Assigning", to="b1")),
    Situation("Assigning", "named, and draining", _draining, _write(RIGHT, "Assigning", to="b1")),
    Situation("Assigned", "the owner, by the record of another process", _former, TinyLog.open),
    Situation("Releasing", "the serving source of a transfer", _serving, _write(LEFT, "Releasing", "b1", "b2")),
    Situation("Releasing", "the serving source of an unload", _serving, _write(LEFT, "Releasing", "b1")),
    Situation("Releasing", "the source, restarted", _former_then("Releasing", "b2"), TinyLog.open),
    Situation("Splitting", "the serving source", _serving, _write(LEFT, "Splitting", "b1")),
    Situation("Splitting", "the source, restarted", _former_then("Splitting"), TinyLog.open),
)
"""A transfer names `b2`, which is heard, but for the row of the lost destination."""


class Row(NamedTuple):
    """What was seen."""

    state: str
    this_broker: str
    hooks: str
    returns: str
    raises: str
    hangs: str


def rows() -> list[Row]:
    """Every situation, three times over."""
    found = []
    for situation in SITUATIONS:
        found.extend(_row(situation, lost=lost) for lost in _destinations(situation))
    return found


def _destinations(situation: Situation) -> tuple[bool, ...]:
    return (False, True) if "source of a transfer" in situation.this_broker else (False,)


def _row(situation: Situation, *, lost: bool) -> Row:
    ends = {hooks_do: _play(situation, hooks_do, lost=lost) for hooks_do in ("return", "raise", "hang")}
    hooks = ends["hang"][0]
    this_broker = situation.this_broker + (", destination lost" if lost else "")
    return Row(situation.state, this_broker, hooks, *(ends[what][1] for what in ("return", "raise", "hang")))


def _play(situation: Situation, hooks_do: str, *, lost: bool) -> tuple[str, str]:
    log = TinyLog()
    log.leader = "leader"  # else this broker would act for it, and repair
    if not lost:
        log.others = ("b2",)
    situation.before(log)
    log.hooks_do = hooks_do
    hooks, written = len(log.hooks), len(log.written)
    situation.trigger(log)
    names = sorted({str(one.hook) for one in log.hooks[hooks:] if one.hook_id})
    log.wait(70)
    chain = [_words(record) for record in log.written[written:] if _about(situation, record)]
    return ", ".join(names), " → ".join(chain)


def _about(situation: Situation, record: dict) -> bool:
    return "draining" not in situation.this_broker or record["action"] == "decline"


def _words(record: dict) -> str:
    target = record["to"] if record["to"] not in (None, "b1") else None
    return f"{record['state']} ({record['action']})" + (" naming the destination" if target else "")
