"""A job that only tells what it was told."""

from typing import Annotated

from spark.cli.job import Option, job_app, job_main, streaming
from spark.core.streaming import Streaming
from spark.errors import TableFormatError


@streaming
def tiny(
    streaming: Streaming, table: Annotated[str, Option("--table")], broken: Annotated[bool, Option("--broken")] = False
):
    """Tell what it was told.

    And more, which no list shows.
    """
    if broken:
        raise TableFormatError(table, "it is broken")
    print(
        table,
        streaming.client.bootstrap_servers,
        streaming.channel,
        streaming.checkpoint,
        streaming.trigger(),
        dict(streaming.conf),
    )
    print(sorted(streaming.source("a", "b").items()))
    return 3


app = job_app(tiny)


def main(argv=None):
    return job_main(app, "tiny", argv)
