"""Owners from the cache: the answer of a step at that moment or none, from any thread, whatever runs meanwhile."""

import sys
import threading

import pytest

from statechannel.engine.commands import (
    BoundTo,
    CreateNamespace,
    DeleteNamespace,
    Lookup,
    Outcome,
    Owned,
    Split,
    Transfer,
    Unload,
)
from statechannel.engine.lookups import Lookups
from statechannel.engine.membership import Member
from statechannel.engine.names import NameTarget
from statechannel.engine.owner_cache import BASES_MIN, OwnerCache
from statechannel.engine.reactions import Reactions
from statechannel.protocol.codec import HEARTBEAT_KEY
from tests.support.lone_engine import BUNDLE, CREATED, LISTENERS, NAMESPACE, LoneEngine, heartbeat
from tests.unit.core.test_floods import leader, ring


def answer(alone: LoneEngine, name: str) -> Outcome:
    outcomes: list[Outcome] = []
    alone.ask(Lookup(name, 60.0), outcomes.append)
    return outcomes[-1]


def cached(alone: LoneEngine, name: str) -> Owned | None:
    return alone.engine.cached_owner(alone.now_s, name)


def owned(count: int = 1) -> tuple[LoneEngine, list[str]]:
    """A leader that serves new bundles."""
    alone = leader()
    names = ring(alone, count)
    for name in names:
        assert isinstance(answer(alone, name), Owned)
    return alone, names


def test_it_says_what_a_step_says() -> None:
    alone, (first, second) = owned(2)
    for name in (first, second, "t/m/topic"):
        assert cached(alone, name) == answer(alone, name) == cached(alone, name)
    for name in ("t/m", "t/none/topic", "nonsense", f"t/m/0x00000000_0x{1:08x}"):
        assert cached(alone, name) is None


def test_a_bundle_without_an_owner_is_for_the_engine() -> None:
    alone = leader()
    (name,) = ring(alone, 1)
    assert cached(alone, name) is None
    assert alone.engine.key(name).state == "Unassigned"  # type: ignore[union-attr]


@pytest.mark.parametrize("change", ["unload", "split", "delete"])
def test_what_changes_a_bundle_ends_its_entry(change: str) -> None:
    alone, (name,) = owned()
    topic = "t/m/topic"
    assert cached(alone, name) is not None
    assert cached(alone, topic) is not None
    command = {
        "unload": Unload(name, "op-1", 60.0),
        "split": Split(name, "op-1", 60.0),
        "delete": DeleteNamespace("t/m", "op-1", 60.0),
    }[change]
    alone.ask(command, lambda _: None)
    alone.run(3)
    assert cached(alone, name) is None
    if change == "split":
        child = cached(alone, topic)
        assert child is not None
        assert child == answer(alone, topic)
    else:
        assert cached(alone, topic) is None


def test_the_next_owner_counts_only_once_it_serves() -> None:
    alone, (name,) = owned()
    before = cached(alone, name)
    alone.hear("z")
    alone.ask(Transfer(name, "z", "op-1", 60.0), lambda _: None)
    assert before is not None
    assert cached(alone, name) is None, "it is in flight"


def test_a_namespace_goes_to_its_broker_by_rule_once_that_is_heard() -> None:
    alone = leader()
    alone.ask(CreateNamespace("pulsar/z", (0, 2**32 - 1), "op-1", 60.0), lambda _: None)
    topic = "pulsar/z/topic"
    assert isinstance(answer(alone, topic), Owned)
    assert cached(alone, topic) is not None
    alone.hear("z")
    assert isinstance(answer(alone, topic), BoundTo)
    assert cached(alone, topic) is None


def test_nothing_is_said_where_a_step_is_due() -> None:
    alone, (name,) = owned()
    assert cached(alone, name) is not None
    alone.sleep(0.3)  # the process stood still: it may have been declared lost meanwhile
    assert cached(alone, name) is None
    alone.run(0.1)
    assert cached(alone, name) is not None


def test_nothing_is_said_from_an_old_view() -> None:
    alone, (name,) = owned()
    alone.hold = True
    for _ in range(9 * 10):
        alone.run(0.1)
        outcome = answer(alone, name)
        assert isinstance(outcome, Owned)
        assert (cached(alone, name) is None) == (outcome.stale_age_s is not None)
    assert cached(alone, name) is None


def test_an_owner_whose_lease_has_run_out_does_not_name_itself() -> None:
    """Nothing in the log says so: the bundle's state, and the registry as this process knows it, are as they were."""
    alone = leader(lease_s=2.5)
    (name,) = ring(alone, 1)
    assert isinstance(answer(alone, name), Owned)
    assert cached(alone, name) is not None
    alone.deaf = True
    alone.run(3.0)
    assert alone.engine.serving() == {}
    assert alone.engine.key(name).state == "Assigned"  # type: ignore[union-attr]
    assert cached(alone, name) is None


def test_nothing_is_said_after_the_end() -> None:
    alone, (name,) = owned()
    alone.engine.stop("closed", "the test is over")
    assert cached(alone, name) is None


def test_nothing_is_said_in_the_middle_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    alone, (name,) = owned()
    seen: list[Owned | None] = []
    moved = Reactions.moved

    def look(reactions: Reactions, *args: object) -> None:
        seen.append(cached(alone, name))
        moved(reactions, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Reactions, "moved", look)
    alone.ask(Unload(name, "op-1", 60.0), lambda _: None)
    assert seen
    assert set(seen) == {None}


def test_what_is_read_while_a_step_begins_is_neither_said_nor_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    alone, (name,) = owned()
    look_up = Lookups._answer

    def late(lookups: Lookups, target: NameTarget, *, read_only: bool) -> object:
        result = look_up(lookups, target, read_only=read_only)
        monkeypatch.undo()
        alone.ask(Unload(name, "op-1", 60.0), lambda _: None)  # as the engine's thread might at this point
        return result

    monkeypatch.setattr(Lookups, "_answer", late)
    assert cached(alone, name) is None
    assert alone.engine.key(name).state == "Unassigned"  # type: ignore[union-attr]
    assert cached(alone, name) is None


@pytest.mark.parametrize("stepping", [True, False])
def test_an_error_is_raised_unless_a_step_was_its_cause(stepping: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    alone, (name,) = owned()

    def fail(cache: OwnerCache, _: str) -> None:
        cache.epoch += stepping
        raise RuntimeError("dictionary changed size during iteration")

    monkeypatch.setattr(OwnerCache, "_look_up", fail)
    if stepping:
        assert cached(alone, name) is None
    else:
        with pytest.raises(RuntimeError, match="dictionary"):
            cached(alone, name)


def test_threads_that_check_an_entry_in_two_epochs_do_not_mix_them() -> None:
    alone, (name,) = owned()
    assert cached(alone, name) is not None
    entry = alone.engine.lookups.cache._owners[name]
    alone.run(0.1)
    assert cached(alone, name) is not None
    newer, checked = entry.epoch, entry.basis.checked
    entry.epoch, entry.basis.checked = newer - 2, (checked[0] - 2, checked[1] + 100)  # what a slow thread writes last
    assert cached(alone, name) is not None
    assert (entry.epoch, entry.basis.checked) == (newer, checked)


def test_its_size_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = leader(lookup_cached_max=10)
    (name,) = ring(alone, 1)
    answer(alone, name)
    for number in range(35):
        assert cached(alone, f"t/m/topic-{number}") is not None
        assert len(alone.engine.lookups.cache._owners) <= 10
    hits: list[str] = []
    look_up = OwnerCache._look_up
    monkeypatch.setattr(OwnerCache, "_look_up", lambda cache, name: (hits.append(name), look_up(cache, name))[1])
    assert cached(alone, "t/m/topic-34") is not None
    assert hits == []


def test_brokers_that_come_and_go_leave_nothing_behind() -> None:
    alone, (name,) = owned()
    cache = alone.engine.lookups.cache
    assert cached(alone, name) is not None
    entry = cache._owners[name]
    for number in range(3 * BASES_MIN):
        member = Member(f"b{number}", f"b{number}-1", 0.0, 0, 0)  # of a pod: no id comes twice
        cache._context.members.alive[member.broker] = member
        cache._basis("t/m", member.broker, member)
        del cache._context.members.alive[member.broker]
    assert len(cache._bases) <= BASES_MIN
    assert cached(alone, name) is not None
    assert cache._owners[name] is entry


def test_other_threads_see_no_state_that_never_was() -> None:
    alone, names = owned(4)
    generations = {name: {alone.engine.key(name).generation} for name in names}  # type: ignore[union-attr]
    stop = threading.Event()
    answers: list[Owned] = []
    errors: list[BaseException] = []

    def look() -> None:
        try:
            while not stop.is_set():
                for name in names:
                    owner = cached(alone, name)
                    if owner is not None:
                        answers.append(owner)
        except BaseException as error:
            errors.append(error)

    pause_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=look) for _ in range(2)]
    try:
        for thread in threads:
            thread.start()
        for round_ in range(60):
            name = names[round_ % 4]
            alone.ask(Unload(name, f"op-{round_}", 60.0), lambda _: None)
            outcome = answer(alone, name)
            generations[name].add(outcome.generation)
            alone.run(0.1)
    finally:
        stop.set()
        sys.setswitchinterval(pause_s)
        for thread in threads:
            thread.join()
    assert errors == []
    assert answers
    assert all(owner.generation in generations[owner.bundle] for owner in answers)


def test_a_process_that_took_over_names_itself_by_its_own_address() -> None:
    """Its predecessor keeps the id until the second own record is read back, or is lost before: neither has the address."""
    alone = LoneEngine([(NAMESPACE, CREATED, 100_000)], take_over=True)
    alone.hear("a", incarnation="a-0", listeners={"tcp": "tcp://a-0"})
    alone.put(HEARTBEAT_KEY, heartbeat("x-1", 0))
    alone.run(0.5)
    alone.deaf = True  # its first record was read back, and no other one is
    alone.run(0.2)
    name, members = BUNDLE.decode(), alone.engine.context.members
    assert members.alive["a"].incarnation == "a-0"
    for step in ("its predecessor is heard", "its predecessor is lost", "it is in safe mode"):
        outcome = answer(alone, name)
        assert isinstance(outcome, Owned), step
        assert (outcome.broker, outcome.urls) == ("a", LISTENERS), step
        assert cached(alone, name) in (None, outcome), step
        if step == "its predecessor is heard":
            alone.between_steps(lambda: members.expire(alone.now_s + members.expiry_s + 1.0, keep="a-1"))
            assert not members.alive
        else:
            alone.run(5.0)
    assert alone.engine.mode == "safe"
