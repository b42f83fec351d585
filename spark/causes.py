"""What ended a query, by the text that Spark gives: the JVM's exceptions reach Python as nothing else."""

from __future__ import annotations

import re
from enum import StrEnum


class Cause(StrEnum):
    """Why a query ended."""

    KAFKA_AWAY = "Kafka does not answer"
    KAFKA_DENIED = "Kafka refuses this client"
    TOPIC_BROKEN = "the topic is not what it was"
    JVM_ENDED = "Spark's JVM has ended"
    WORKER_LACKS = "the Python of the executors lacks a module"
    OTHER = "Spark ended the query"


# In this order: a refusal is also told as a failure to connect, and lost offsets come wrapped in time-outs.
_SIGNS = (
    (
        Cause.TOPIC_BROKEN,
        r"KAFKA_DATA_LOSS|UnknownTopicOrPartitionException|OffsetOutOfRangeException|InvalidTopicException"
        r"|Partitions? .* (?:lost|gone|deleted)|data may have been lost",
    ),
    (
        Cause.KAFKA_DENIED,
        r"SaslAuthenticationException|SslAuthenticationException|AuthorizationException|AuthenticationException",
    ),
    (
        Cause.KAFKA_AWAY,
        r"org\.apache\.kafka\.common\.errors\.(?:TimeoutException|DisconnectException|NetworkException"
        r"|CoordinatorNotAvailableException|LeaderNotAvailableException|NotLeaderOrFollowerException"
        r"|BrokerNotAvailableException|RetriableException)"
        r"|No resolvable bootstrap urls|Cannot fetch record for offset",
    ),
    (Cause.WORKER_LACKS, r"PythonException.*\bModuleNotFoundError: No module named "),
    (Cause.JVM_ENDED, r"Py4JNetworkError|Answer from Java side is empty|Connection refused.*py4j"),
)
_COMPILED = tuple((cause, re.compile(pattern, re.DOTALL)) for cause, pattern in _SIGNS)
_CAUSED_BY = re.compile(r"^\s*Caused by: (.+)$", re.MULTILINE)
_MISSING_MODULE = re.compile(r"^ModuleNotFoundError: .+$", re.MULTILINE)
_LENGTH = 400


def cause_of(text: str) -> Cause:
    """Which of the causes that have an exit code this text tells of."""
    return next((cause for cause, pattern in _COMPILED if pattern.search(text)), Cause.OTHER)


def gist(text: str) -> str:
    """The line of a long text that says most: a module that is missing, the innermost cause, else the first line."""
    causes = _MISSING_MODULE.findall(text) or _CAUSED_BY.findall(text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = causes[-1] if causes else lines[0] if lines else "no reason was given"
    return told if len(told) <= _LENGTH else told[:_LENGTH] + "..."
