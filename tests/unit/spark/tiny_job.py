"""A job that only tells what it was told."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

from spark.cli.job import Option, job_app, job_main, streaming
from spark.core.streaming import Streaming
from spark.errors import TableFormatError


@dataclass
class TinyOptions:
    table: Annotated[str, Option("--table")]
    broken: Annotated[bool, Option("--broken")] = False


@streaming(TinyOptions)
def tiny(streaming: Streaming, options: TinyOptions):
    """Tell what it was told.

    And more, which no list shows.
    """
    if options.broken:
        raise TableFormatError(options.table, "it is broken")
    print(
        options.table,
        streaming.client.bootstrap_servers,
        streaming.channel,
        streaming.checkpoint,
        streaming.trigger(),
        dict(streaming.conf),
    )
    print(sorted(streaming.source(may_lose=False).items()))
    return 3


app = job_app(tiny)
main = partial(job_main, app, "tiny")
