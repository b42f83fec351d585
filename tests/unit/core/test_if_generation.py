"""Moves and splits on a condition: only while the bundle has the generation that the caller knows."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statechannel.engine.commands import Command, CreateNamespace, Lookup, Split, Transfer, Unload
from statechannel.protocol.bundle import namespace_bounds
from statechannel.protocol.keys import KeyState
from statechannel.protocol.states import State
from tests.scenarios.world import World

TOPIC = "t/n/topic"
WHOLE = "t/n/0x00000000_0xffffffff"


def running() -> World:
    """Two brokers and a bundle that has an owner."""
    world = World()
    for broker in ("a", "b"):
        world.start(broker)
    world.run(8)
    world.ask("a", CreateNamespace("t/n", tuple(namespace_bounds(1)), "create", 5.0), "create")
    world.run(2)
    world.ask("a", Lookup(TOPIC, 5.0), "lookup")
    world.run(3)
    world.lines.clear()
    return world


def key_of(world: World) -> KeyState:
    context = world.process("a").engine.context
    return context.key(WHOLE)


def moves(generation: int | None, owner: str) -> dict[str, Command]:
    other = "b" if owner == "a" else "a"
    return {
        "transfer": Transfer(TOPIC, other, "move", 5.0, if_generation=generation),
        "unload": Unload(TOPIC, "move", 5.0, if_generation=generation),
        "split": Split(TOPIC, "move", 5.0, if_generation=generation),
    }


@pytest.mark.parametrize("kind", ["transfer", "unload", "split"])
@pytest.mark.parametrize("asked", ["a", "b"])
@pytest.mark.parametrize(("distance", "is_begun"), [(0, True), (-1, False), (1, False), (None, True)])
def test_a_move_begins_only_at_its_generation(kind: str, asked: str, distance: int | None, is_begun: bool) -> None:
    world = running()
    key = key_of(world)
    wanted, before = None if distance is None else key.generation + distance, key.accepted_id
    world.ask(asked, moves(wanted, key.owner)[kind], "the move")
    world.run(3)
    answer = next(line for line in world.lines if "answers the move" in line)
    assert ("started" in answer) == is_begun, answer
    assert ("rejected (generation-changed)" in answer) != is_begun, answer
    assert (key_of(world).accepted_id == before) != is_begun, "what is rejected leaves no record"


@settings(max_examples=20)
@given(steps=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2), st.booleans()), min_size=1, max_size=6))
def test_of_moves_that_know_the_same_generation_one_at_most_begins(steps: list[tuple[str, int, bool]]) -> None:
    """Asked at both brokers, at once or one after the other, by callers who have read the bundle at different times.

    Args:
        steps: Whom to ask, how many generations ago the caller has read, and whether to wait for the end first.
    """
    world = running()
    known = [key_of(world).generation]
    begun: list[int | None] = []
    for number, (asked, ago, waits) in enumerate(steps):
        wanted = known[max(0, len(known) - 1 - ago)]
        world.ask(asked, Unload(TOPIC, f"op-{number}", 5.0, if_generation=wanted), f"unload {number}:")
        begun.append(wanted)
        if waits:
            world.run(3)
            world.ask("a", Lookup(TOPIC, 5.0), "lookup")
            world.run(3)
            key = key_of(world)
            assert key.state is State.ASSIGNED
            if key.generation != known[-1]:
                known.append(key.generation)
    world.run(6)
    started = [
        begun[number] for number in range(len(steps)) if any(f"started op-{number}" in line for line in world.lines)
    ]
    assert len(started) == len(set(started)), world.lines


@pytest.mark.parametrize("kind", ["transfer", "unload", "split"])
@pytest.mark.parametrize("typed", ["t/n/0x00000000", "t/n/0X00000000_0XFFFFFFFF", "t/n/0000000_0xffffffff"])
def test_what_looks_like_a_bundle_moves_no_topics_bundle(kind: str, typed: str) -> None:
    world = running()
    key = key_of(world)
    before, owner = key.accepted_id, key.owner or ""
    for name, is_begun in ((typed, False), (f"persistent://{typed}", True)):
        command = replace(moves(None, owner)[kind], name=name, operation=f"move-{is_begun}")
        world.ask("a", command, "the move")
        world.run(3)
        answer = [line for line in world.lines if "answers the move" in line][-1]
        assert ("not found" in answer) != is_begun, answer
        assert (key_of(world).accepted_id == before) != is_begun
