"""The stream of accepted records: where it is whole, and who says that it is not."""

import pytest

from statechannel.engine.commands import CreateNamespace
from tests.support.lone_engine import BUNDLE, CREATED, NAMESPACE, LoneEngine, mark


def leading(channel: list[tuple[bytes, bytes | None, int]] | None = None, **config: float) -> LoneEngine:
    engine = LoneEngine(channel or [], **config)
    engine.run(3)
    return engine


def create(engine: LoneEngine, name: str) -> int:
    engine.ask(CreateNamespace(name, (0, 0xFFFFFFFF), f"op-{name}", 30.0), lambda _: None)
    (offset,) = engine.written(name.encode())
    return offset


def test_it_is_open_from_the_join_on() -> None:
    engine = LoneEngine([(NAMESPACE, CREATED, 1000)])
    assert engine.engine.streams.closed_why() is None
    joining = LoneEngine([(NAMESPACE, CREATED, 1000)] * 5, first=4)
    assert joining.engine.streams.closed_why() == "partition 0 is being joined"
    assert joining.delivered == []


def test_a_reader_that_is_opened_anew_interrupts_it_though_nobody_asked_for_it() -> None:
    engine = leading()
    first = create(engine, "t/one")
    assert engine.delivered == [first]
    engine.channel.append((NAMESPACE, CREATED, 1000))  # accepted while nobody reads
    engine.reopen()
    assert engine.restarts == 0
    assert engine.engine.caught_up
    assert engine.delivered == [first, None]
    assert engine.engine.streams.closed_why() is None
    third = create(engine, "t/three")
    assert engine.delivered == [first, None, third]


def test_a_gap_interrupts_it_once() -> None:
    engine = leading()
    engine.engine.replicas[0].view.applied = 0
    engine.between_steps(lambda: engine.engine.transitions.start_over(0, "a gap"))
    assert engine.delivered == [None]
    assert engine.engine.streams.closed_why() == "partition 0 is being joined"


@pytest.mark.parametrize("reopened", [False, True])
def test_a_newer_format_interrupts_it_for_good(reopened: bool) -> None:
    engine = leading()
    first = create(engine, "t/one")
    engine.put(BUNDLE, b'{"format":9}')
    if reopened:
        engine.reopen()
    assert engine.delivered == [first, None]
    assert "format 9" in (engine.engine.streams.closed_why() or "")


def test_a_mark_of_unknown_origin_interrupts_it_until_that_is_settled() -> None:
    engine = leading()
    first = create(engine, "t/one")
    later_ms = engine.engine.presence.last_ms + 10_000
    engine.channel.append((b"!cold-start", mark("x-1", len(engine.channel) - 1), later_ms))
    engine.run(0.1)
    assert engine.delivered == [first, None], "this process has not read the registry that far"
    assert "started cold" in (engine.engine.streams.closed_why() or "")
    engine.run(15)
    assert engine.engine.context.judges(0), "nobody knows its writer: it is junk"
    assert engine.engine.streams.closed_why() is None
    third = create(engine, "t/three")
    assert engine.delivered == [first, None, third]
