"""Command `statechannel init`: creation and verification of a channel's topics."""

from __future__ import annotations

from typing import Annotated

import typer

from statechannel.cli.kit.kafka_wait import notify_if_slow
from statechannel.cli.kit.options import Connect, OutputAs, with_connection
from statechannel.cli.kit.output import Output, print_json, print_table, say
from statechannel.kafka.topics import create_topics, verify_topics

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@with_connection
def init(
    connect: Connect,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", min=1, max=1_000, help="Partitions of the channel's topic; fixed at creation."),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option("--replication-factor", min=1, max=15, help="Replicas of each topic. Default: the cluster's."),
    ] = None,
    output: OutputAs = Output.TABLE,
) -> None:
    """Create missing topics of a channel, and verify the settings of all."""
    connection = connect()
    chosen = connection.settings.channel
    with notify_if_slow(connection):
        create_topics(
            connection.client,
            connection.topics,
            partitions=partitions or chosen.partitions,
            replication_factor=replication_factor or chosen.replication_factor,
            timeout_s=connection.timeout_s,
        )
        topics = verify_topics(connection.client, connection.topics, timeout_s=connection.timeout_s)
    name = connection.topics.channel
    if partitions is not None and topics.topics[name].partitions != partitions:
        say(f"note: {name} has {topics.topics[name].partitions} partitions; the number is fixed at creation")
    if output is Output.JSON:
        print_json(
            {
                "channel": name,
                "bootstrap_servers": connection.client.bootstrap_servers,
                "topics": [
                    {"name": info.name, "partitions": info.partitions, "replicas": info.replicas}
                    for info in topics.topics.values()
                ],
                "advice": [str(difference) for difference in topics.differences],
            }
        )
        return
    print_table(
        ("topic", "partitions", "replicas", "cleanup"),
        [
            (info.name, info.partitions, info.replicas, info.settings.get("cleanup.policy"))
            for info in topics.topics.values()
        ],
    )
    for difference in topics.differences:
        say(f"advice: {difference}")
