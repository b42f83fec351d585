"""Remarks of policies on brokers and the cluster, for `statechannel brokers` and `statechannel status`."""

from __future__ import annotations

from shedders.cli.policy.write import book_of
from shedders.policies.effective import Force
from statechannel.cli.kit.connection import Connection
from statechannel.cli.kit.live_log import now_ms
from statechannel.cli.kit.remarks import Remarks


def policies(connection: Connection) -> Remarks:
    """Cordons by broker; shedding that is off, and overrides in force.

    Raises:
        StateChannelError: The policies cannot be read.
    """
    effective = book_of(connection).at(now_ms())
    cluster = [*effective.closed, *filter(None, [effective.overfull])]
    if not effective.shedding_on:
        cluster.append(effective.shedding_why)
    overrides = sum(entry.key.override for entry in effective.entries if entry.force is Force.IN_FORCE)
    if overrides:
        is_are = "override is" if overrides == 1 else "overrides are"
        cluster.append(f"{overrides} {is_are} in force (`statechannel override list`)")
    cordons = effective.policies.cordons
    return Remarks(cluster, {name: f"cordoned ({why})" if why else "cordoned" for name, why in sorted(cordons.items())})
