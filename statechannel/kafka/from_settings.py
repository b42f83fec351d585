"""Conversion of settings for the adapter."""

from __future__ import annotations

from statechannel.kafka.client_settings import ClientSettings, ClientTuning, read_properties_file
from statechannel.kafka.topic_policy import ChannelLags, ChannelTopics
from statechannel.settings import Settings

_ADDRESS = frozenset({"bootstrap.servers", "metadata.broker.list"})


def to_client(settings: Settings, *, client_id: str = "statechannel") -> ClientSettings:
    """Client settings: the properties file, properties in the settings (higher precedence), the address (highest).

    Args:
        settings: The tree of settings.
        client_id: Shown by the cluster's tools.

    Raises:
        ClientSettingRefusedError: A property that the design fixes, a file that cannot be read, or no address at all.
    """
    kafka = settings.kafka
    return ClientSettings.from_sources(
        bootstrap_servers=kafka.bootstrap_servers,
        file=kafka.properties_file,
        overrides=[f"{key}={value.get_secret_value()}" for key, value in kafka.properties.items()],
        client_id=client_id,
        tuning=ClientTuning(
            delivery_timeout_ms=kafka.delivery_timeout_ms,
            request_timeout_ms=kafka.request_timeout_ms,
            session_timeout_ms=kafka.session_timeout_ms,
            producer_queue_records=kafka.producer_queue_records,
            fetch_queue_kib=kafka.fetch_queue_kib,
            topic_grace_s=kafka.topic_grace_s,
            stall_timeout_s=kafka.stall_timeout_s,
        ),
    )


def names_servers(settings: Settings) -> bool:
    """Whether a Kafka address is given, as a setting or as a librdkafka property."""
    kafka = settings.kafka
    keys = set(kafka.properties)
    if kafka.properties_file is not None:
        keys |= set(read_properties_file(kafka.properties_file))
    return kafka.bootstrap_servers is not None or bool(keys & _ADDRESS)


def to_topics(settings: Settings) -> ChannelTopics:
    """Names and policies of the channel's topics."""
    channel = settings.channel
    lags = ChannelLags(
        min_compaction_lag_ms=channel.min_compaction_lag_ms,
        max_compaction_lag_ms=channel.max_compaction_lag_ms,
        segment_ms=channel.segment_ms,
        delete_retention_ms=channel.delete_retention_ms,
        min_cleanable_dirty_ratio=channel.min_cleanable_dirty_ratio,
        segment_bytes=channel.segment_bytes,
    )
    return ChannelTopics(channel.name, lags)
