"""A broker killed, restarted or paused at every step of every flow at once: real processes on a real Kafka.

One victim, which also leads, is stuck with nineteen bundles, each at another step; then it dies, or is started again, or is
paused for longer than the others' patience and wakes as a zombie that sends what it had held back.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from statechannel.api import StateChannel
from statechannel.audit.gaps import GapCause, GapEnd
from statechannel.protocol.bundle import bundle_key, children_of, even_bounds, namespace_bounds
from statechannel.protocol.digest import digest
from statechannel.protocol.states import State
from statechannel.protocol.verdict import REJECTIONS
from tests.support.channels import created
from tests.support.kafka_lanes import Kafka
from tests.support.killing import EXPIRY_S, Directed, Victim, audit_of, owners, read_log, settled, survivor, victim
from tests.support.waits import WAIT_S

NAMESPACE = "public/default"
BOUNDS = namespace_bounds(32)
BUNDLES = [bundle_key(NAMESPACE, BOUNDS[n], BOUNDS[n + 1]) for n in range(32)]
VICTIM = "v"


def halves(bundle: str) -> list[str]:
    index = BUNDLES.index(bundle)
    return [f"{NAMESPACE}/{child}" for child in children_of(even_bounds(2, BOUNDS[index], BOUNDS[index + 1]))]


@dataclass(frozen=True)
class Case:
    """One bundle: who owns it first, what is done with it, where the victim gets stuck, and what the log then says."""

    name: str
    first: str | None
    do: str
    step: str
    state: State
    on_child: bool = False
    by_survivor: bool = False


CASES = (
    Case("assign, proposer, before the record", None, "lookup", "append:Assigning", State.UNASSIGNED),
    Case("assign, named, in on_own", None, "lookup", "own", State.ASSIGNING, by_survivor=True),
    Case("assign, named, after on_own", None, "lookup", "append:Assigned", State.ASSIGNING, by_survivor=True),
    Case("assign, named, after the record", None, "lookup", "sent:Assigned", State.ASSIGNED, by_survivor=True),
    Case("transfer, source, before the record", VICTIM, "transfer", "append:Releasing", State.ASSIGNED),
    Case("transfer, source, in on_release", VICTIM, "transfer", "release", State.RELEASING),
    Case("transfer, source, after on_release", VICTIM, "transfer", "append:Assigning", State.RELEASING),
    Case("transfer, source, after letting go", VICTIM, "transfer", "sent:Assigning", State.ASSIGNED),
    Case("transfer, destination, in on_own", "s1", "transfer", "own", State.ASSIGNING, by_survivor=True),
    Case("transfer, destination, after on_own", "s1", "transfer", "append:Assigned", State.ASSIGNING, by_survivor=True),
    Case("transfer, destination, at the end", "s1", "transfer", "sent:Assigned", State.ASSIGNED, by_survivor=True),
    Case("unload, before the record", VICTIM, "unload", "append:Releasing", State.ASSIGNED),
    Case("unload, in on_release", VICTIM, "unload", "release", State.RELEASING),
    Case("unload, after on_release", VICTIM, "unload", "append:Unassigned", State.RELEASING),
    Case("unload, at the end", VICTIM, "unload", "sent:Unassigned", State.UNASSIGNED),
    Case("split, before the record", VICTIM, "split", "append:Splitting", State.ASSIGNED),
    Case("split, in on_own of a child", VICTIM, "split", "own", State.SPLITTING, on_child=True),
    Case("split, after on_own", VICTIM, "split", "append:Deleted", State.SPLITTING),
    Case("split, at the end", VICTIM, "split", "sent:Deleted", State.DELETED),
)
UNTOUCHED = BUNDLES[len(CASES) : len(CASES) + 2]
CASE_OF = dict(zip(BUNDLES, CASES, strict=False))
STEPS = {(halves(bundle)[0] if case.on_child else bundle): case.step for bundle, case in CASE_OF.items()}


@dataclass
class Scene:
    """Everybody stuck, right before the blow."""

    bootstrap: str
    name: str
    victim: Victim
    survivors: list[StateChannel]
    live: list[str]
    generations: dict[str, int] = field(default_factory=dict)


@asynccontextmanager
async def stuck_everywhere(kafka: Kafka, name: str, expiry_s: float = EXPIRY_S) -> AsyncIterator[Scene]:
    placement = Directed()
    at = kafka.bootstrap_servers
    async with (
        victim(VICTIM, at, name, f"membership.expiry_s={expiry_s}") as process,  # the first member, so it leads
        survivor("s1", at, name, placement, expiry_s) as first,
        survivor("s2", at, name, placement, expiry_s) as second,
    ):
        await created(first, NAMESPACE, 32)
        owned = {bundle: case.first for bundle, case in CASE_OF.items() if case.first} | dict.fromkeys(
            UNTOUCHED, VICTIM
        )
        named = {bundle: VICTIM for bundle, case in CASE_OF.items() if case.first is None}
        placement.wanted = owned | named
        before = await owners(first, list(owned))
        assert {bundle: owner.broker for bundle, owner in before.items()} == owned
        mine = {bundle for bundle, broker in owned.items() if broker == VICTIM}
        await process.until(lambda item: mine <= {entry.get("serve") for entry in item})
        await process.ask("plan", "planned", steps=STEPS)
        asked = [asyncio.create_task(begin(bundle, case, process, first)) for bundle, case in CASE_OF.items()]
        await process.stuck_at(STEPS)
        await settled(lambda: states(at, name) == {bundle: case.state for bundle, case in CASE_OF.items()}, WAIT_S)
        live = [
            b for b in BUNDLES if b not in CASE_OF or CASE_OF[b].do != "split" or CASE_OF[b].state is not State.DELETED
        ]
        live += [child for bundle in BUNDLES if bundle not in live for child in halves(bundle)]
        scene = Scene(at, name, process, [first, second], live)
        scene.generations = {bundle: owner.generation for bundle, owner in before.items()}
        try:
            yield scene
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)


async def begin(bundle: str, case: Case, process: Victim, first: StateChannel) -> None:
    destination = VICTIM if case.by_survivor else "s1"
    if not case.by_survivor:
        await process.do(case.do, name=bundle, **({"to": destination} if case.do == "transfer" else {}))
    elif case.do == "lookup":
        await first.lookup(bundle, WAIT_S)
    else:
        await (await first.transfer(bundle, destination)).outcome(WAIT_S)


def states(bootstrap: str, name: str) -> dict[str, State | None]:
    view = audit_of(read_log(bootstrap, name))[0].view
    return {bundle: key.state for bundle in CASE_OF if (key := view.get(bundle)) is not None}


async def claims(members: dict[str, StateChannel | Victim]) -> dict[str, list[tuple[str, int]]]:
    """Who serves what, at which generation, in their own words."""
    serving: dict[str, list[tuple[str, int]]] = {}
    for broker, member in members.items():
        held = await member.ask("serving", "serving") if isinstance(member, Victim) else member.serving()
        for bundle, generation in held.items():
            serving.setdefault(bundle, []).append((broker, generation))
    return serving


async def check_the_end(scene: Scene, members: dict[str, StateChannel | Victim]) -> None:
    """One owner for every bundle, its generation risen; all views and the audit's equal; every gap ended with its cause."""
    result, asked, held = {}, {}, {}
    until_s = asyncio.get_running_loop().time() + WAIT_S
    while asyncio.get_running_loop().time() < until_s:
        result = await owners(scene.survivors[0], scene.live)
        asked = {bundle: [(owner.broker, owner.generation)] for bundle, owner in result.items()}
        held = await claims(members)
        if {owner.broker for owner in result.values()} <= set(members) and asked == held:
            break
        await asyncio.sleep(0.3)  # until patience has ended the lost one counts as owner; on_serve follows the verdict
    assert {broker for pairs in asked.values() for broker, _ in pairs} <= set(members)
    assert held == asked
    assert all(result[bundle].generation >= before for bundle, before in scene.generations.items() if bundle in result)

    audit, gaps = audit_of(read_log(scene.bootstrap, scene.name))
    assert [
        key for key in audit.view.existing() if key.state in (State.ASSIGNING, State.RELEASING, State.SPLITTING)
    ] == []
    assert [gap for gap in gaps.all() if gap.end is GapEnd.OPEN] == []
    assert {gap.cause for gap in gaps.all()} <= {
        GapCause.TRANSFER,
        GapCause.UNLOAD,
        GapCause.DECLINED,
        GapCause.OWNER_LOST,
    }
    wanted = digest([audit.view])
    await settled(lambda: all(member.digest()[0] == wanted for member in scene.survivors), WAIT_S)


async def test_killed_at_every_step_the_others_repair(kafka: Kafka, topic_prefix: str) -> None:
    async with stuck_everywhere(kafka, topic_prefix) as scene:
        await scene.victim.kill()
        await settled(lambda: any(member.status()["leading"] for member in scene.survivors), WAIT_S)
        await check_the_end(scene, {"s1": scene.survivors[0], "s2": scene.survivors[1]})
        _, gaps = audit_of(read_log(scene.bootstrap, scene.name))
        lost = [gap for gap in gaps.all() if gap.cause is GapCause.OWNER_LOST]
        assert {gap.before for gap in lost} == {VICTIM}
        assert set(UNTOUCHED) <= {gap.bundle for gap in lost}
        assert all(gap.repaired and gap.end_ms is not None and gap.end_ms > gap.start_ms for gap in lost)


async def test_killed_at_every_step_and_started_again_it_acts_on_what_it_left(kafka: Kafka, topic_prefix: str) -> None:
    # Nobody takes anything from it before it is back, however slowly it starts.
    async with stuck_everywhere(kafka, topic_prefix, 2 * WAIT_S) as scene:
        await scene.victim.kill()
        flags = (f"membership.expiry_s={2 * WAIT_S}", "membership.take_over=true")
        async with victim(VICTIM, scene.bootstrap, scene.name, *flags) as again:
            await check_the_end(scene, {VICTIM: again, "s1": scene.survivors[0], "s2": scene.survivors[1]})
            audit, gaps = audit_of(read_log(scene.bootstrap, scene.name))
            resumed = [audit.view.get(bundle) for bundle in UNTOUCHED]
            assert all(key is not None and key.owner == VICTIM for key in resumed)
            missed = [gap for gap in gaps.all() if gap.bundle in UNTOUCHED]
            assert {(gap.bundle, gap.cause, gap.before, gap.after, gap.repaired) for gap in missed} == {
                (bundle, GapCause.OWNER_LOST, VICTIM, VICTIM, False) for bundle in UNTOUCHED
            }, "it came back before anybody else took them"


async def test_paused_at_every_step_it_wakes_as_a_zombie_and_harms_nobody(kafka: Kafka, topic_prefix: str) -> None:
    async with stuck_everywhere(kafka, topic_prefix) as scene:
        others = {"s1": scene.survivors[0], "s2": scene.survivors[1]}
        scene.victim.stop()
        await settled(lambda: any(member.status()["leading"] for member in scene.survivors), WAIT_S)
        await check_the_end(scene, others)
        scene.victim.cont()
        await scene.victim.do("go")  # everything that it had held back leaves now
        await settled(lambda: late_records(scene) > 0, WAIT_S)
        await settled(lambda: all(m.status()["oldest_debt_s"] == 0 for m in scene.survivors), WAIT_S)
        await serves_nothing(scene.victim)  # it may still have to read the records of its pause
        await check_the_end(scene, {VICTIM: scene.victim, **others})


async def serves_nothing(victim: Victim) -> None:
    """Return when it does; a zombie that goes on serving what others own never comes to that."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + WAIT_S
    while held := await victim.ask("serving", "serving"):
        assert loop.time() < until_s, held
        await asyncio.sleep(0.1)


def late_records(scene: Scene) -> int:
    verdicts = audit_of(read_log(scene.bootstrap, scene.name))[0].verdicts
    return sum(verdicts[verdict] for verdict in REJECTIONS)
