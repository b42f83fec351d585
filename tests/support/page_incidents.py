"""Incidents as the page is to name them, and how each comes about in a simulated cluster."""

from collections.abc import Callable
from typing import Any

from statechannel.broker.changes import Derived
from statechannel.protocol.bundle import range_name
from statechannel.protocol.states import State
from tests.support.page_server import NAMESPACE, PageWorld, now_ms


def changed(world: PageWorld, broker: str, **values: Any) -> None:
    """What one broker says of itself from now on."""
    world.rows = [{**row, **values} if row["broker"] == broker else row for row in world.rows]  # type: ignore[misc, typeddict-item]


def past(world: PageWorld) -> None:
    """A quiet hour: the log from which the page begins."""
    begin_ms = now_ms() - 420_000
    bundles = list(world.owners)
    lower_bounds = [Derived(name, State.UNASSIGNED, 2, None) for name in bundles]
    world.change(NAMESPACE, State.ACTIVE, None, None, at_ms=begin_ms, by="b1", derived=lower_bounds, flow="namespace")
    for number, (name, owner) in enumerate(world.owners.items()):
        at_ms = begin_ms + 1_000 + 400 * number
        world.change(name, State.ASSIGNING, None, owner, at_ms=at_ms, by="b1", flow="assignment")
        world.change(name, State.ASSIGNED, None, owner, at_ms=at_ms + 20, by=owner, flow="assignment")
    for number in range(6):
        world.transfer(bundles[5 * number], "b1", begin_ms + 30_000 + 4_000 * number, reason="balance", decision="d1")
    world.decisions = [
        decision(
            "d1", begin_ms + 29_000, moves=6, why="b2 at 81 % of its cpu, mean 60 %", scores={"b1": 0.4, "b2": 0.81}
        ),
        decision("d2", begin_ms + 90_000, skipped="balanced", why="no broker is more than 10 % above the mean"),
    ]
    world.source.log = list(world.log)


def decision(identifier: str, at_ms: int, **values: Any) -> dict[str, Any]:
    """A row of the balancer's decisions."""
    row: dict[str, Any] = {
        "id": identifier,
        "at_ms": at_ms,
        "leader": "b1",
        "subject": "shed",
        "skipped": None,
        "scores": {},
    }
    return row | {"moves": 0, "splits": 0, "placed": 0, "left": 0, "reason": "", "why": ""} | values


def owner_killed(world: PageWorld) -> None:
    world.take(*world.lose("b3", now_ms() - 12_000, now_ms() - 1_000))


def leader_killed(world: PageWorld) -> None:
    changes = world.lose("b1", now_ms() - 11_000, now_ms() - 500)
    changed(world, "b2", leading=True)
    world.look()
    world.take(*changes)


def kafka_away(world: PageWorld) -> None:
    for row in world.rows:
        changed(world, row["broker"], mode="safe", leading=False, accepting=False)
    world.look(mode="safe", away_since_ms=now_ms() - 95_000)


def stuck_hook(world: PageWorld) -> None:
    bundle = next(name for name, owner in world.owners.items() if owner == "b2")
    at_ms = now_ms() - 21_000
    error = "TimeoutError: no answer of the storage"
    failed = {"times": 3, "bundle": bundle, "error": error, "since_ms": at_ms, "ago_ms": 900}
    changed(world, "b2", hooks_failed={"on_release": failed})
    world.look()
    world.take(
        world.change(bundle, State.RELEASING, "b2", "b4", at_ms=at_ms, by="b2", flow="transfer", operation="op-stuck")
    )


def mass_loss(world: PageWorld) -> None:
    for broker in ("b2", "b3", "b4"):
        world.lose(broker, now_ms() - 15_000, now_ms(), repaired=False)
    why = "3 of 4 brokers were lost within 10 s"
    world.look(pauses=[{"broker": "b1", "why": why, "left_ms": 45_000, "lost_since_ms": now_ms() - 15_000}])


def drain_blocked(world: PageWorld) -> None:
    message = "0 bundles were moved, 6 bundles are left: the isolation policy `acme` allows b2 alone"
    world.cordons = [cordon("b2", "left-bundles", drain_ended_ms=now_ms() - 40_000, drain_message=message)]


def cordon(broker: str, drain_state: str | None, **values: Any) -> dict[str, Any]:
    """A row of `/v1/cordons`: a drain's, or without a state a person's."""
    row: dict[str, Any] = {"broker": broker, "by": "ann@desk", "why": "new disks", "override": False}
    row |= {"since_ms": now_ms() - 60_000, "until_ms": None, "drain": None if drain_state is None else "op-drain"}
    return row | {"drain_state": drain_state, "drain_ended_ms": None, "drain_message": None} | values


def flapping(world: PageWorld) -> None:
    bundle, at_ms = list(world.owners)[9], now_ms() - 60_000
    changes = []
    for number in range(7):
        owner = "b3" if world.owners[bundle] != "b3" else "b4"
        changes += world.transfer(
            bundle, owner, at_ms + 8_000 * number, reason="load shedding", decision=f"d{3 + number}"
        )
    world.take(*changes)


def hot_split(world: PageWorld) -> None:
    bundle = list(world.owners)[12]
    owner, at_ms = world.owners.pop(bundle), now_ms() - 2_000
    lower, upper = (int(bound, 16) for bound in bundle.rpartition("/")[2].split("_"))
    middle = (lower + upper) // 2
    children = [f"{NAMESPACE}/{range_name(low, high)}" for low, high in ((lower, middle), (middle, upper))]
    world.owners |= dict.fromkeys(children, owner)
    fields = {"by": owner, "flow": "split", "decision": "d9", "reason": "hot: 48,000 messages/s, the limit is 30,000"}
    derived = [Derived(name, State.ASSIGNED, 9, owner) for name in children]
    world.decisions.append(
        decision("d9", at_ms - 500, splits=1, why=f"{bundle} is hot: 48,000 messages/s, the limit is 30,000")
    )
    world.take(
        world.change(bundle, State.SPLITTING, owner, None, at_ms=at_ms, **fields),
        world.change(bundle, State.DELETED, owner, None, at_ms=at_ms + 300, derived=derived, **fields),
    )


def junk_flood(world: PageWorld) -> None:
    world.look(rejected={"undecodable": 41_000, "wrong-broker": 2_100})


def mixed_versions(world: PageWorld) -> None:
    changed(world, "b4", software="1.5.0")
    world.look()


def suspect(world: PageWorld) -> None:
    changed(world, "b3", heard_ago_ms=3_100)
    world.look()


INCIDENTS: dict[str, tuple[Callable[[PageWorld], None], str | None]] = {
    "owner-killed": (owner_killed, "broker-lost"),
    "leader-killed": (leader_killed, "broker-lost"),
    "suspect": (suspect, "broker-suspect"),
    "kafka-away": (kafka_away, "kafka-silent"),
    "stuck-hook": (stuck_hook, "slow-operation"),
    "mass-loss": (mass_loss, "repair-paused"),
    "drain-blocked": (drain_blocked, "drain-blocked"),
    "flapping-bundle": (flapping, "flapping"),
    "hot-bundle-split": (hot_split, None),
    "junk-flood": (junk_flood, "junk"),
    "mixed-versions": (mixed_versions, "versions"),
}
"""By the names of their pictures, each with the condition that the page lists; None: it is only an event."""


def is_shown(page: Any, problem: str | None) -> None:
    """Wait until a page lists it."""
    page.locator(
        f"#problem-rows li[data-kind={problem}]" if problem else "#event-rows td:has-text('split')"
    ).first.wait_for()
