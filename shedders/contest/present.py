"""Present configuration of a snapshot's cluster as a contender."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shedders.contest.contenders import AS_IT_IS, contender
from shedders.model.strategy import KINDS
from shedders.snapshots.selection import choose

if TYPE_CHECKING:
    from shedders.contest.contenders import Contender
    from shedders.snapshots.model import Snapshot


def present(snapshot: Snapshot) -> Contender:
    """Contender with the strategies and settings of a snapshot's cluster, without its policies on single bundles or brokers.

    Raises:
        StateChannelError: A strategy, a setting or the profile in it does not exist.
    """
    base = contender(f"profile/{snapshot.profile}")
    chosen = {kind: choose(snapshot, kind).name for kind in KINDS}
    settings: dict[str, Any] = {}
    for kind in (*KINDS, "parts"):
        for name, values in getattr(snapshot.settings, kind).items():
            settings |= {f"{kind}.{name}.{setting}": value for setting, value in values.items()}
    return replace(
        base,
        name=AS_IT_IS,
        about=f"what the cluster of the snapshot does: {chosen['shedding']}, {chosen['placement']}",
        shedding=chosen["shedding"],
        placement=chosen["placement"],
        split=chosen["split"],
        overrides={**base.overrides, **settings},
    )
