"""Remarks of `brokers` and `status` on formats: brokers that a newer format waits for (design/upgrades.md)."""

from __future__ import annotations

from statechannel.cli.kit.connection import Connection
from statechannel.cli.kit.registry import read_registry
from statechannel.cli.kit.remarks import Remarks
from statechannel.protocol.record import held_back_by


def formats(connection: Connection) -> Remarks:
    """Brokers that keep the others from writing the newest format; empty if all read the same."""
    members = read_registry(connection, listen=False).members.alive
    newest, waits_for = held_back_by({broker: member.formats for broker, member in members.items()})
    if not waits_for:
        return Remarks()
    remark = f"does not read format {newest}: upgrade it (design/upgrades.md)"
    return Remarks(
        [f"format {newest} is not written until these brokers are upgraded or stopped: {', '.join(waits_for)}"],
        dict.fromkeys(waits_for, remark),
    )
