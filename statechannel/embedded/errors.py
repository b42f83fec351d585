"""Errors of the embedded broker, each with a hint."""

from statechannel.errors import StateChannelError


class EmbeddedKafkaError(StateChannelError):
    """The embedded Kafka failed."""


class JavaUnavailableError(EmbeddedKafkaError):
    """No Java runtime, or only ones that are too old for Kafka 4."""


class JarsUnavailableError(EmbeddedKafkaError):
    """The jars are missing, cannot be fetched, or are not the listed ones."""


class BrokerStartError(EmbeddedKafkaError):
    """The broker did not come up; the message carries the cause from its log."""


class PortInUseError(BrokerStartError):
    """Another program listens on the wanted port."""


class AlreadyRunningError(BrokerStartError):
    """A broker already runs on this data folder."""
