"""Embedded Apache Kafka broker (KRaft, one node) on this machine, on loopback only.

The jars come from the user's cache or from a folder of the user's own and are compared with a
committed list of checksums before every start; Java is the system's or the one shipped as a wheel.
"""

from statechannel.embedded.detached import BrokerState, BrokerStatus, down, resume_hint, status, up
from statechannel.embedded.errors import (
    AlreadyRunningError,
    BrokerStartError,
    EmbeddedKafkaError,
    JarsUnavailableError,
    JavaUnavailableError,
    PortInUseError,
)
from statechannel.embedded.jars import KAFKA_VERSION, prepare_jars
from statechannel.embedded.layout import BrokerOptions, BrokerSecurity
from statechannel.embedded.server import KafkaServer

__all__ = [
    "KAFKA_VERSION",
    "AlreadyRunningError",
    "BrokerOptions",
    "BrokerSecurity",
    "BrokerStartError",
    "BrokerState",
    "BrokerStatus",
    "EmbeddedKafkaError",
    "JarsUnavailableError",
    "JavaUnavailableError",
    "KafkaServer",
    "PortInUseError",
    "down",
    "prepare_jars",
    "resume_hint",
    "status",
    "up",
]
