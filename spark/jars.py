"""The jars of Spark's Kafka connector, by the list beside this file; why these is in design/decisions/0050."""

import sys

from statechannel.embedded.errors import JarsUnavailableError
from statechannel.embedded.jars import PinnedJars

SPARK_VERSION = "4.2.0"
JARS_VARIABLE = "STATECHANNEL_SPARK_JARS"

SPARK_JARS = PinnedJars(
    title=f"the Kafka connector of Spark {SPARK_VERSION}",
    package="spark",
    resource="jars.sha256",
    folder_name=f"spark-kafka-{SPARK_VERSION}",
    variable=JARS_VARIABLE,
    size_mib=10,
)

prepare_jars = SPARK_JARS.prepare


def main() -> int:
    """Fill the cache, for `make`; returns the exit status."""
    try:
        prepare_jars(say=lambda line: print(f"setup: {line}", flush=True))
    except JarsUnavailableError as error:
        print(f"setup: {error}\nhint: {error.hint}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
