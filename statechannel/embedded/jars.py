"""Jars of Apache Kafka, listed in the file next to this one."""

from statechannel.embedded.pinned import PinnedJars

KAFKA_VERSION = "4.3.1"
JARS_VARIABLE = "STATECHANNEL_KAFKA_JARS"

KAFKA_JARS = PinnedJars(
    title=f"Apache Kafka {KAFKA_VERSION}",
    package="statechannel.embedded",
    resource="jars.sha256",
    folder_name=f"kafka-{KAFKA_VERSION}",
    variable=JARS_VARIABLE,
    size_mib=44,
)

find_jars = KAFKA_JARS.find
prepare_jars = KAFKA_JARS.prepare
