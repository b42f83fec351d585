"""One way to make the client that asks about topics, nodes and rights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from statechannel.kafka.errors import translate

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import KafkaError

    from statechannel.kafka.client_settings import ClientSettings


def make_admin(settings: ClientSettings, on_error: Callable[[KafkaError], Any]) -> AdminClient:
    """The client; `on_error` is told what goes wrong between two calls.

    Raises:
        KafkaAdapterError: The settings are not what the client library takes.
    """
    config: dict[str, Any] = {**settings.admin_config(), "error_cb": on_error}
    try:
        return AdminClient(config)
    except (KafkaException, TypeError, ValueError) as error:
        raise translate(error, "making the admin client", secrets=settings.secrets()) from None
