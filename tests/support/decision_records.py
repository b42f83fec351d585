"""Decision records, and channel logs that they fit to, spelled out for tests."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from shedders.decision.dry_run import CheckedMove, Decision
from shedders.decisions.builder import Executed, Occasion, RecordBounds, shed_record
from shedders.decisions.record import DecisionRecord, Inputs
from shedders.model.cluster import Broker, Bundle, Cluster
from shedders.model.plan import BundleMove, Label, Left, Placed, Plan, Reason
from statechannel.protocol.log import RecordRead, Topic

NAMESPACE = "t/n"
FULL = "0x00000000_0xffffffff"
LOWER, UPPER = "0x00000000_0x80000000", "0x80000000_0xffffffff"
WHOLE = f"{NAMESPACE}/{FULL}"
IDS = tuple(f"01J9Z3KQ7S0000000000000{number:03d}" for number in range(100))
AT_MS = 1_700_000_000_000


def occasion(number: int = 1, **more: Any) -> Occasion:
    given: dict[str, Any] = {
        "id": IDS[number],
        "term": 7,
        "leader": "b1",
        "cycle": number,
        "at_ms": AT_MS + 60_000 * number,
        "inputs": Inputs(channel={"0": 41}, broker_load=12, top_bundles=9, policies=3),
        "strategy": "transfer",
        "placement": "least-resource-usage",
        "profile": "default",
        "settings": {"shedding": {"target_std": 0.25}},
        "took_ms": 4.5,
    }
    return Occasion(**{**given, **more})


def decision(
    *,
    moves: Sequence[CheckedMove | BundleMove] = (),
    left: Sequence[Left] = (),
    placed: Sequence[Placed] = (),
    scores: Mapping[str, float] | None = None,
    stats: Mapping[str, float] | None = None,
    label: Label | None = None,
    reason: Reason = Reason.OVERLOADED,
    why: str = "said",
    brokers: int = 3,
) -> Decision:
    checked = [
        planned if isinstance(planned, CheckedMove) else CheckedMove(planned, planned.destination) for planned in moves
    ]
    names = {check.move.bundle: check.move.source for check in checked}
    cluster = Cluster(
        {f"b{number}": Broker(f"b{number}") for number in range(1, brokers + 1)},
        {name: Bundle(name, owner) for name, owner in names.items()},
    )
    plan = Plan(
        "transfer",
        label or (Label.SUCCESS if checked else Label.SKIP),
        reason,
        why,
        [check.move for check in checked],
        left,
        scores=scores or {},
        stats=stats or {},
    )
    return Decision(cluster, (), plan, checked, placed, {}, {})


def move(bundle: str = WHOLE, source: str = "b1", destination: str | None = "b2", **more: Any) -> BundleMove:
    given = {"reason": Reason.OVERLOADED, "load": 1_000.0, "why": f"{source} has 80 %, {destination} 20 %"}
    return BundleMove(bundle, source, destination, **{**given, **more})


def record(
    number: int = 1,
    *,
    executed: Mapping[str, Executed] | None = None,
    bounds: RecordBounds | None = None,
    **fields: Any,
) -> DecisionRecord:
    return shed_record(occasion(number), decision(**fields), executed=executed or {}, bounds=bounds)


class ChannelLog:
    """Writes a channel's records, with the right version and base and a second apart if nothing else is said."""

    def __init__(self, at_ms: int = AT_MS) -> None:
        self.records: list[RecordRead] = []
        self._accepted: dict[str, tuple[int, str]] = {}
        self.at_ms = at_ms

    def write(
        self,
        key: str,
        state: str,
        *,
        by: str = "b1",
        by_process: Mapping[str, str] | None = None,
        after_ms: int = 1_000,
        **fields: Any,
    ) -> None:
        version, base = self._accepted.get(key, (0, None))
        record_id = f"id-{len(self.records)}"
        value: dict[str, Any] = {
            "format": 1,
            "kind": "proposal",
            "id": record_id,
            "covers": len(self.records) - 1,
            "by": by_process or {"broker": by, "incarnation": f"{by}-i"},
            "version": version + 1,
            "base": base,
            "state": state,
            "from": None,
            "to": None,
            **fields,
        }
        self.at_ms += after_ms
        raw = json.dumps(value).encode()
        self.records.append(RecordRead(Topic.CHANNEL, 0, len(self.records), self.at_ms, key.encode(), raw))
        if value["version"] != version + 1:
            return
        self._accepted[key] = (version + 1, record_id)
        split = state == "Deleted"
        namespace = key.rpartition("/")[0] if split else key
        for child in value.get("children", ()):
            self._accepted[f"{namespace}/{child}"] = (version + 1 + split, f"{record_id}/{child}")

    def created(self, *children: str, namespace: str = NAMESPACE) -> None:
        self.write(namespace, "Active", children=list(children or (FULL,)), flow="namespace", operation="create-1")

    def assigned(self, bundle: str = WHOLE, to: str = "b1", by: str = "b1") -> None:
        flow = {"flow": "assignment"}
        self.write(bundle, "Assigning", by=by, to=to, action="own", **flow)
        self.write(bundle, "Assigned", by=to, to=to, action="return", **flow)

    def moved(self, bundle: str, source: str, to: str, **more: Any) -> None:
        flow = {"flow": "transfer", **more}
        self.write(bundle, "Releasing", action="transfer", **{"from": source}, to=to, **flow)
        self.write(bundle, "Assigning", by=source, action="transfer", **{"from": source}, to=to, **flow)
        self.write(bundle, "Assigned", by=to, action="return", **{"from": source}, to=to, **flow)

    def unloaded(self, bundle: str, source: str, **more: Any) -> None:
        flow = {"flow": "unload", **more}
        self.write(bundle, "Releasing", action="unload", **{"from": source}, **flow)
        self.write(bundle, "Unassigned", by=source, action="unload", **{"from": source}, **flow)

    def split(self, bundle: str, owner: str, *children: str, **more: Any) -> None:
        flow = {"flow": "split", **more}
        self.write(bundle, "Splitting", by=owner, action="split", **{"from": owner}, **flow)
        self.write(bundle, "Deleted", by=owner, action="split", **{"from": owner}, children=list(children), **flow)
