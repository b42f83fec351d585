"""Connections to channels, built from options."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from platformdirs import user_data_path

from statechannel.cli.kit.contexts import ClusterContext
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.progress import TERMINAL
from statechannel.errors import ExitCode
from statechannel.kafka.client_settings import names_servers, parse_override
from statechannel.queries.connection import Connection, connection_to
from statechannel.settings import Settings, load
from statechannel.settings.names import CONFIG_VARIABLE


def embedded_folder(settings: Settings) -> Path:
    return settings.embedded.folder or user_data_path("statechannel", appauthor=False) / "kafka"


def connect(
    bootstrap_servers: str | None,
    channel: str | None,
    config: Path | None,
    properties: Sequence[str] | None,
    flags: Sequence[str] | None,
    properties_file: Path | None = None,
) -> Connection:
    """Resolve the options.

    Raises:
        CommandError: No address is given anywhere, and no embedded Kafka runs.
    """
    return connection_of(settings_of(bootstrap_servers, channel, config, properties_file, properties, flags))


def connection_of(settings: Settings, context: str = "") -> Connection:
    """The address in the settings, else that of the embedded Kafka running here; raises as `connect`."""
    if not names_servers(settings):
        kafka = settings.kafka.model_copy(update={"bootstrap_servers": _running(settings)})
        settings = settings.model_copy(update={"kafka": kafka})
    return connection_to(settings, TERMINAL, context)


def settings_of(
    bootstrap_servers: str | None,
    channel: str | None,
    config: Path | None,
    properties_file: Path | None,
    properties: Sequence[str] | None,
    flags: Sequence[str] | None,
    context: ClusterContext | None = None,
) -> Settings:
    """Settings from the options by which Kafka and the channel are found; what they leave open, from the context."""
    properties_given = dict(parse_override(option) for option in properties or ())
    kafka = {
        "bootstrap_servers": bootstrap_servers,
        "properties_file": properties_file,
        "properties": properties_given or None,
    }
    overrides: dict[str, dict[str, Any]] = {"kafka": kafka, "channel": {"name": channel}}
    context = context or ClusterContext()
    if config is None and not os.environ.get(CONFIG_VARIABLE) and context.config is not None:
        config = Path(context.config)
    return load(config=config, flags=flags or (), overrides=overrides, defaults=context.values())


def _running(settings: Settings) -> str:
    # Commands with an address begin sooner without it.
    from statechannel.embedded import BrokerState, resume_hint, status

    folder = embedded_folder(settings)
    broker = status(folder)
    address = broker.bootstrap_servers
    if broker.state is BrokerState.RUNNING and address is not None:
        return address
    start = "Start it"
    if broker.state is BrokerState.STARTING:
        what, start = "the embedded Kafka is starting", "Wait for it"
    elif broker.state is BrokerState.SUSPENDED:
        raise CommandError(
            f"the embedded Kafka of {address} is suspended", hint=resume_hint(broker), code=ExitCode.KAFKA_AWAY
        )
    elif address is None:
        what, start = f"no Kafka address is given, and no embedded Kafka runs in {folder}", "Start one"
    elif broker.state is BrokerState.CRASHED:
        what = f"the embedded Kafka of {address} ended unexpectedly; its log is {broker.log_path}"
    else:
        what = f"the embedded Kafka of {address} is stopped"
    raise CommandError(
        what,
        hint=f"{start} with `statechannel kafka up`, or give --bootstrap-servers HOST:PORT.",
        code=ExitCode.KAFKA_AWAY,
    )
