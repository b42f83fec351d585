"""Accepted states of a live channel, for commands, which do not join."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from statechannel.audit.transfer.export_file import read_export
from statechannel.audit.verdict_file import Observe
from statechannel.audit.views import LogViews, NotInLogError, read_views
from statechannel.cli.kit.connection import Connection
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.live_log import export_live
from statechannel.cli.kit.output import say
from statechannel.errors import ExitCode
from statechannel.protocol.keys import KeyState


def read_channel(connection: Connection, observers: Sequence[Observe] = ()) -> LogViews:
    """Read the channel's topic to its end; warns on standard error if the result is not reliable."""
    with tempfile.TemporaryDirectory(prefix="statechannel-view-") as folder:
        path = Path(folder) / "export.jsonl"
        export_live(connection, path)
        lag_ms = connection.settings.channel.min_compaction_lag_ms
        views = read_views(read_export(path, made_here=True), compaction_lag_ms=lag_ms, observers=observers)
    if views.tentative:
        say(
            "tentative: the log was cleaned and no heartbeat vouches for what is left; "
            "start a broker, or ask again when one runs"
        )
    for part in views.parts:
        if part.stop is not None:
            say(
                f"partition {part.view.partition} holds a record of format {part.stop.format} at offset "
                f"{part.stop.offset}; what follows needs a newer version of this program"
            )
    return views


def locate(views: LogViews, name: str) -> KeyState:
    """The live bundle of a name, or the error that ends the command."""
    try:
        return views.locate(name)
    except NotInLogError as error:
        raise not_found(str(error), hint=error.hint) from error


def not_found(message: str, *, hint: str = "") -> CommandError:
    """The error for a name that does not exist."""
    return CommandError(message, hint=hint, code=ExitCode.NOT_FOUND)
