"""Options that several commands have; one place for their names and help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from statechannel.cli.output import Output

BootstrapServers = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-servers",
        "-b",
        metavar="HOST:PORT,...",
        help="Kafka's addresses. Default: the settings, else the embedded Kafka that runs here.",
    ),
]
Channel = Annotated[str | None, typer.Option("--channel", metavar="NAME", help="Name of the channel.")]
Config = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Settings as TOML.")]
ClientProperties = Annotated[
    list[str] | None, typer.Option("-X", metavar="KEY=VALUE", help="A librdkafka property; may be repeated.")
]
SettingFlags = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="GROUP.NAME=VALUE", help="Any setting (design/settings.md); may be repeated."),
]
OutputAs = Annotated[Output, typer.Option("--output", help="A table for people, or JSON for programs.")]
Timeout = Annotated[
    float | None, typer.Option("--timeout", metavar="SECONDS", min=0.1, max=3600, help="Longest wait for the answer.")
]
Reason = Annotated[str | None, typer.Option("--reason", help="For people who read the log; nobody judges it.")]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Return as soon as the request is written.")]
