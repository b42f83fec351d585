"""Rows of the page's table of bundles: those that are wanted, in the order that is wanted. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from heapq import nlargest, nsmallest
from typing import Any, Literal

from pydantic import Field

from statechannel.http_api.page.bundle_table import Holding, LiveBundleTable
from statechannel.protocol.bundle import parse_key
from statechannel.protocol.states import State
from statechannel.queries.query import NAME_MAX, RequestModel


class BundleRowsQuery(RequestModel):
    """Which bundles, and in which order."""

    text: str = Field("", max_length=NAME_MAX, description="Only bundles whose name has it.")
    broker: str | None = Field(None, max_length=NAME_MAX, description="Only bundles that this broker has.")
    state: State | None = Field(None, description="Only bundles in this state.")
    unserved: bool = Field(False, description="Only bundles that no live broker has, and that were looked up.")
    load_min: float = Field(0, ge=0, description="Only bundles of at least this load (bytes a second, in and out).")
    sort: Literal["bundle", "owner", "state", "load"] = "bundle"
    descending: bool = False
    limit: int = Field(100, ge=1, le=1_000, description="Most rows; their number is of all.")


def bundle_rows(
    table: LiveBundleTable,
    query: BundleRowsQuery,
    alive: Collection[str],
    unserved: Collection[int],
    loads: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """The number of those that are wanted, and the first of them.

    Args:
        alive: Brokers that can serve.
        unserved: Keys of bundles that have lost their owner.
        loads: Rows of `/v1/loads`: the heaviest bundles.
    """
    load_of: dict[int, float] = {}
    for row in loads:
        parts = parse_key(row["bundle"].encode())
        if parts is not None and table.has_namespace(parts.namespace):
            key = table.key_of(parts.namespace, parts.lower)
            load_of[key] = row["msg_throughput_in"] + row["msg_throughput_out"]

    def is_wanted(key: int, upper: int, holding: Holding) -> bool:
        owner, state = holding.owner, holding.state
        return (
            (query.broker is None or owner == query.broker)
            and (query.state is None or state is query.state)
            and not (query.unserved and (owner in alive or (state is State.UNASSIGNED and key not in unserved)))
            and load_of.get(key, 0) >= query.load_min
            and (not query.text or query.text in table.name_of(key, upper))
        )

    def order(row: tuple[int, int, Holding]) -> tuple[Any, int]:
        key, _, (state, owner, *_) = row
        if query.sort == "load":
            return load_of.get(key, 0), key
        return owner or "" if query.sort == "owner" else state if query.sort == "state" else table.namespace_of(
            key
        ), key

    wanted = [row for row in table.rows() if is_wanted(*row)]
    first = (nlargest if query.descending else nsmallest)(query.limit, wanted, order)
    return {
        "all": len(wanted),
        "rows": [
            {
                "bundle": table.name_of(key, upper),
                "state": holding.state.value,
                "owner": holding.owner,
                "next": holding.destination,
                "load": load_of.get(key),
            }
            for key, upper, holding in first
        ],
    }
