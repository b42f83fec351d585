"""Accepted states of a live channel or an export, for those that do not join; rows of namespaces and bundles as JSON."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from typing_extensions import TypedDict

from statechannel.audit.transfer.export_file import read_export
from statechannel.audit.views import LogViews, NotInLogError, read_views
from statechannel.errors import NotFoundError
from statechannel.protocol.keys import KeyState
from statechannel.protocol.states import IN_FLIGHT, State
from statechannel.queries.connection import AnswerReporter, Connection
from statechannel.queries.live_log import export_live
from statechannel.replay.part import Observer


def read_channel(connection: Connection, observers: Sequence[Observer] = ()) -> LogViews:
    """Read the channel's topic to its end; notes where the result is not reliable."""
    with tempfile.TemporaryDirectory(prefix="statechannel-view-") as folder:
        path = Path(folder) / "export.jsonl"
        export_live(connection, path)
        lag_ms = connection.settings.channel.min_compaction_lag_ms
        views = read_views(read_export(path, made_here=True), compaction_lag_ms=lag_ms, observers=observers)
    return _remarked(views, connection.reporter)


def read_file(path: Path, reporter: AnswerReporter, observers: Sequence[Observer] = ()) -> LogViews:
    """The same of an export file.

    Raises:
        ExportFileError: It cannot be read, or was edited.
    """
    return _remarked(read_views(read_export(path), observers=observers), reporter)


def _remarked(views: LogViews, reporter: AnswerReporter) -> LogViews:
    lost = [
        f"partition {part.view.partition} begins at offset {part.head_lost}" for part in views.parts if part.head_lost
    ]
    if lost:
        reporter.note(
            f"tentative: records were deleted from the head of the log ({', '.join(lost)}), and no broker has restated them yet "
            "(`statechannel doctor`)"
        )
    elif views.tentative:
        reporter.note(
            "tentative: the log was cleaned and no heartbeat vouches for what is left; "
            "start a broker, or ask again when one runs"
        )
    for part in views.parts:
        if part.stop is not None:
            reporter.note(
                f"partition {part.view.partition} holds a record of format {part.stop.format} at offset "
                f"{part.stop.offset}; what follows needs a newer version of this program"
            )
    return views


def locate(views: LogViews, name: str) -> KeyState:
    """The live bundle of a name.

    Raises:
        NotFoundError: There is none.
    """
    try:
        return views.locate(name)
    except NotInLogError as error:
        raise NotFoundError(str(error), hint=error.hint) from error


class BundleRow(TypedDict):
    """A live bundle: who serves it, who is to serve it next, and the record that made the state."""

    bundle: str
    state: State | None
    owner: str | None
    next: str | None
    generation: int | None
    version: int
    id: str | None
    operation: str | None
    flow: str | None
    offset: int


class NamespaceRow(TypedDict):
    """A namespace, with the numbers of its live bundles."""

    namespace: str
    version: int
    bundles: int
    served: int
    in_flight: int


class NamespaceDetails(TypedDict):
    """States and owners of a namespace's bundles, by number."""

    splits: int
    created_by: str | None
    operation: str | None
    states: dict[str, int]
    owners: dict[str, int]


def bundle_row(key: KeyState) -> BundleRow:
    bound_for = key.bound_for
    return {
        "bundle": key.name,
        "state": key.state,
        "owner": key.owner,
        "next": bound_for if bound_for != key.owner else None,
        "generation": key.generation,
        "version": key.version,
        "id": key.accepted_id,
        "operation": key.operation,
        "flow": key.flow,
        "offset": key.offset,
    }


def was_asked_for(key: KeyState) -> bool:
    """Whether a bundle had an owner, or should have got one: nothing precedes its first lookup."""
    return key.state is not State.UNASSIGNED or key.from_ is not None


def namespace_row(key: KeyState) -> NamespaceRow:
    live = [] if key.ring is None else list(key.ring.live.values())
    return {
        "namespace": key.name,
        "version": key.version,
        "bundles": len(live),
        "served": sum(bundle.owner is not None for bundle in live),
        "in_flight": sum(bundle.state in IN_FLIGHT for bundle in live),
    }


def namespace_details(key: KeyState) -> NamespaceDetails:
    ring = key.ring
    live = [] if ring is None else list(ring.live.values())
    states = Counter(bundle.state.value for bundle in live if bundle.state is not None)
    owners = Counter(bundle.owner for bundle in live if bundle.owner is not None)
    return {
        "splits": 0 if ring is None else len(ring.parents),
        "created_by": None if key.writer is None else key.writer.broker,
        "operation": key.operation,
        "states": dict(sorted(states.items())),
        "owners": dict(sorted(owners.items())),
    }
