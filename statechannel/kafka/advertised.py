"""The addresses that Kafka tells its clients to use (advertised.listeners), tried where Kafka itself answers."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Final

import orjson
from confluent_kafka import KafkaError

from statechannel.kafka.addresses import KafkaAddress, addresses_of
from statechannel.kafka.admin import STATISTICS_MS, AdminHandle
from statechannel.kafka.errors import ClientSettingRefusedError, KafkaUnavailableError, describe

if TYPE_CHECKING:
    from statechannel.kafka.client_settings import ClientSettings

_ANSWER_S: Final = 3.0
_TRIED_MAX: Final = 3
_VAGUE: Final = frozenset({KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT})  # noqa: SLF001 - public codes


def require_advertised(settings: ClientSettings) -> None:
    """Return if Kafka does not answer at the given addresses, or the first three that it advertises answer, too.

    Takes three seconds for each address at most. Clients ask the given addresses for the list of brokers only; all else they
    send to the advertised ones.

    Raises:
        KafkaUnavailableError: Kafka answers, and advertises an address at which this client reaches no Kafka.
    """
    asked = settings.bootstrap_servers
    nodes = _nodes(settings)
    if isinstance(nodes, str):
        return
    known = set(addresses_of(asked))
    others = ((node, address) for node, address in sorted(nodes.items()) if address not in known)
    for node, address in islice(others, _TRIED_MAX):
        try:
            answer = _nodes(replace(settings, bootstrap_servers=address.text))
        except ClientSettingRefusedError as error:
            answer = str(error)
        if isinstance(answer, str):
            raise KafkaUnavailableError(
                f"Kafka at {asked} answers, but tells clients to use {address.text}, which cannot be reached: {answer}",
                hint=f"If Kafka broker {node} runs, set its advertised.listeners to an address that clients here can use (in "
                "containers: a listener of its own for each network), or make this one resolve, route and, with TLS, match the "
                "certificate.",
                address=asked,
            )


def _nodes(settings: ClientSettings) -> dict[int, KafkaAddress] | str:
    """Advertised addresses by node, or why no Kafka answers.

    The library's statistics have them as soon as the given address has answered. A request for metadata may go to an advertised
    one instead.
    """
    errors: list[KafkaError] = []
    nodes: dict[int, KafkaAddress] = {}

    def take(statistics: str) -> None:
        for broker in orjson.loads(statistics)["brokers"].values():
            if broker["source"] == "learned":
                host, _, port = broker["nodename"].rpartition(":")
                nodes[broker["nodeid"]] = KafkaAddress(host.strip("[]"), int(port))

    admin = AdminHandle(settings, errors.append, take)
    ends_s = time.monotonic() + _ANSWER_S
    while not nodes and time.monotonic() < ends_s:
        admin.client.poll(STATISTICS_MS / 1_000)
    if nodes:
        return nodes
    reasons = (describe(error, settings.secrets()) for error in errors if error.code() not in _VAGUE)
    return next(reasons, f"no answer within {_ANSWER_S:g} s")
