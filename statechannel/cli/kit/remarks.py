"""What other packages have to say of the cluster and its brokers where `brokers` and `status` show them: cordons, for one.

They join by the entry point group `statechannel.remarks`: a function that is given the connection and returns `Remarks`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import NamedTuple

from statechannel.audit.transfer.export_file import read_header
from statechannel.audit.transfer.line import BadLine
from statechannel.cli.kit.connection import Connection
from statechannel.cli.kit.output import say
from statechannel.errors import StateChannelError

GROUP = "statechannel.remarks"


class Remarks(NamedTuple):
    """Sentences for people: of the whole cluster, and by broker."""

    cluster: Sequence[str] = ()
    brokers: Mapping[str, str] = {}


def remarks(connection: Connection) -> Remarks:
    """What every package that is installed says; one that cannot tell is named, and does not keep the others from it."""
    cluster: list[str] = []
    brokers: dict[str, str] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            more = point.load()(connection)
        except StateChannelError as error:
            cluster.append(f"{point.name} could not be read: {error}")
            continue
        cluster += more.cluster
        for broker, text in more.brokers.items():
            brokers[broker] = f"{brokers[broker]}; {text}" if broker in brokers else text
    return Remarks(cluster, brokers)


def remark_unchained(path: Path) -> None:
    """Say that an edit of this file would not be seen; whoever reads it says what else is wrong with it."""
    with suppress(OSError, BadLine):
        if path.is_file() and read_header(path).digest is None:
            say(f"note: {path} carries no digest of its records: whether it was edited cannot be seen")
