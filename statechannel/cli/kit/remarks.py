"""Remarks of other packages on the cluster and its brokers, shown by `brokers` and `status`: cordons, for example.

They register in the entry point group `statechannel.remarks`: a function of the connection that returns `Remarks`.
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
    """Sentences on the whole cluster, and by broker."""

    cluster: Sequence[str] = ()
    brokers: Mapping[str, str] = {}


def remarks(connection: Connection) -> Remarks:
    """Remarks of every installed package; a package that fails is named, and the others are still shown."""
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
    """Warn that edits of this file would not be detected; its reader reports all other problems."""
    with suppress(OSError, BadLine):
        if path.is_file() and read_header(path).digest is None:
            say(f"note: {path} has no digest of its records: edits cannot be detected")
