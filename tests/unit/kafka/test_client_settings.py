"""Properties of the clients: what passes, what is refused, what is never shown."""

import time
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException

from statechannel.kafka.client_settings import (
    FIXED_KEYS,
    ClientSettings,
    ClientTuning,
    make_client,
    parse_override,
    parse_properties,
    to_client,
)
from statechannel.kafka.errors import ClientSettingRefusedError, KafkaAccessDeniedError
from statechannel.settings import load

SASL = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "broker-1",
    "sasl.password": "p=a ss#word",
    "ssl.ca.location": "/etc/ssl/ca.pem",
    "ssl.key.password": "key-word",
    "ssl.key.pem": "-----BEGIN",
    "sasl.oauthbearer.client.secret": "hush",
}


def write(folder: Path, text: str) -> Path:
    file = folder / "client.properties"
    file.write_text(text, encoding="utf-8")
    return file


def configs(settings: ClientSettings) -> list[dict[str, object]]:
    return [
        settings.producer_config(),
        settings.consumer_config("g"),
        settings.election_config("g"),
        settings.admin_config(),
    ]


def test_sasl_properties_of_a_file_reach_every_client_untouched(tmp_path: Path) -> None:
    lines = "".join(f"{key}={value}\n" for key, value in SASL.items())
    settings = ClientSettings.from_sources(
        bootstrap_servers="h:1", file=write(tmp_path, f"# comment\n\n  ; another\n{lines}")
    )
    for config in configs(settings):
        assert {key: config[key] for key in SASL} == SASL


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path: Path) -> None:
    settings = ClientSettings.from_sources(bootstrap_servers="h:1", file=write(tmp_path, "\ufeffclient.rack = a\n"))
    assert settings.properties == {"client.rack": "a"}


@pytest.mark.parametrize(
    ("properties", "taken"),
    [
        ({"receive.message.max.bytes": "1000"}, False),
        ({"receive.message.max.bytes": "52429311"}, False),
        ({"receive.message.max.bytes": "52429312"}, True),
        ({"receive.message.max.bytes": "10000000", "fetch.max.bytes": "9000000"}, True),
        ({"receive.message.max.bytes": "9000000", "fetch.max.bytes": "9000000"}, False),
    ],
)
def test_a_limit_below_what_kafka_may_answer_is_named(properties: dict[str, str], taken: bool) -> None:
    with nullcontext() if taken else pytest.raises(ClientSettingRefusedError, match=r"receive\.message\.max\.bytes"):
        ClientSettings("h:1", properties)
    # The library agrees, where it looks at all.
    with nullcontext() if taken else pytest.raises(KafkaException, match=r"receive\.message\.max\.bytes"):
        Consumer({"bootstrap.servers": "h:1", "group.id": "g", "log_level": 0, **properties}).close()


OAUTH = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}


@pytest.mark.parametrize(
    ("more", "taken"),
    [
        ({}, False),
        ({"sasl.oauthbearer.method": "default"}, False),
        ({"sasl.oauthbearer.method": "OIDC"}, True),
        ({"enable.sasl.oauthbearer.unsecure.jwt": "true"}, True),
        ({"security.protocol": "SSL"}, True),
        ({"sasl.mechanism": "PLAIN"}, True),
    ],
)
def test_oauth_without_a_source_of_tokens_is_an_error_of_settings(more: dict[str, str], taken: bool) -> None:
    with nullcontext() if taken else pytest.raises(ClientSettingRefusedError, match="OAUTHBEARER"):
        ClientSettings("h:1", OAUTH | more)


def make_token(config: str) -> tuple[str, float]:
    return f"token of {config}", time.time() + 60


def refuse_token(_: str) -> tuple[str, float]:
    raise RuntimeError("no role")


def by_callback(name: str) -> ClientSettings:
    kafka = {"bootstrap_servers": "h:1", "properties": OAUTH, "oauth_callback": name}
    return to_client(load(overrides={"kafka": kafka}))


def test_a_callback_makes_the_tokens_of_every_client() -> None:
    settings = by_callback(f"{__name__}:make_token")
    assert [config["oauth_cb"]("x")[0] for config in configs(settings)] == ["token of x"] * 4
    assert "make_token" not in repr(settings)


@pytest.mark.parametrize("name", ["no_such_module:f", f"{__name__}:nothing", f"{__name__}:OAUTH"])
def test_a_callback_that_is_not_there_is_an_error_of_settings(name: str) -> None:
    with pytest.raises(ClientSettingRefusedError, match="oauth_callback"):
        by_callback(name)


def test_why_a_callback_fails_is_logged_and_in_the_error(caplog: pytest.LogCaptureFixture) -> None:
    settings = by_callback(f"{__name__}:refuse_token")

    def make(config: dict[str, Any]) -> None:  # the library says no more than this, after 10 s
        with suppress(RuntimeError):
            config["oauth_cb"]("")
        raise KafkaException(KafkaError(KafkaError.SASL_AUTHENTICATION_FAILED, "OAuth token not set"))

    with pytest.raises(KafkaAccessDeniedError, match="no role"):
        make_client(make, settings.admin_config(), settings, "making a client")
    assert "no role" in caplog.text


def test_overrides_beat_the_file_and_the_option_beats_both(tmp_path: Path) -> None:
    file = write(tmp_path, "bootstrap.servers = file:1\nclient.rack = a\ndebug = broker\n")
    merged = ClientSettings.from_sources(file=file, overrides=["client.rack=b"])
    assert merged.bootstrap_servers == "file:1"
    assert merged.properties == {"client.rack": "b", "debug": "broker"}
    stronger = ClientSettings.from_sources(file=file, bootstrap_servers="option:2")
    assert stronger.bootstrap_servers == "option:2"
    assert all(config["bootstrap.servers"] == "option:2" for config in configs(stronger))


@pytest.mark.parametrize("key", sorted(FIXED_KEYS))
def test_what_the_design_fixes_is_refused_by_name(key: str) -> None:
    with pytest.raises(ClientSettingRefusedError, match=key.replace(".", r"\.")) as caught:
        ClientSettings("h:1", {key: "the-value"})
    assert "the-value" not in str(caught.value)
    assert caught.value.hint
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("key", ["error_cb", "oauth_cb", "on_delivery", "logger"])
def test_callbacks_cannot_be_given_as_text(key: str) -> None:
    with pytest.raises(ClientSettingRefusedError, match=key):
        ClientSettings.from_sources(bootstrap_servers="h:1", overrides=[f"{key}=x"])


def test_no_address_is_refused_with_a_hint() -> None:
    with pytest.raises(ClientSettingRefusedError) as caught:
        ClientSettings.from_sources()
    assert "statechannel kafka up" in caught.value.hint


def test_secrets_are_never_shown() -> None:
    settings = ClientSettings("h:1", SASL)
    shown = f"{settings!r} {settings} {settings.redacted()}"
    hidden = ("p=a ss#word", "key-word", "-----BEGIN", "hush")
    assert not [value for value in hidden if value in shown]
    assert settings.redacted()["sasl.username"] == "broker-1"
    assert set(hidden) <= set(settings.secrets())


@pytest.mark.parametrize("line", ["no equals sign here", "=value without key"])
def test_a_line_that_is_no_property_is_named_by_its_number_only(line: str) -> None:
    with pytest.raises(ClientSettingRefusedError, match="line 2") as caught:
        parse_properties(f"a=b\n{line}\n", "f.properties")
    assert line not in str(caught.value)


def test_an_override_keeps_equals_signs_and_spaces_of_its_value() -> None:
    assert parse_override("sasl.password= a=b ") == ("sasl.password", " a=b ")
    with pytest.raises(ClientSettingRefusedError):
        parse_override("secret-without-key")


def test_an_unreadable_file_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ClientSettingRefusedError, match="cannot be read"):
        ClientSettings.from_sources(bootstrap_servers="h:1", file=tmp_path / "missing")


def test_the_clients_have_what_the_protocol_rests_on() -> None:
    tuning = ClientTuning(delivery_timeout_ms=7_000, session_timeout_ms=2_000)
    settings = ClientSettings("h:1", tuning=tuning)
    producer = settings.producer_config()
    assert (producer["acks"], producer["enable.idempotence"], producer["linger.ms"]) == (
        "all",
        True,
        0,
    )
    assert producer["delivery.timeout.ms"] == 7_000
    assert "transactional.id" not in producer
    consumer = settings.consumer_config("g")
    assert consumer["auto.offset.reset"] == "error"
    assert consumer["enable.auto.commit"] is False
    assert consumer["enable.partition.eof"] is True
    election = settings.election_config("g")
    assert election["session.timeout.ms"] == 2_000
    assert election["heartbeat.interval.ms"] == 200
    assert "group.instance.id" not in election


def test_no_client_creates_a_topic_that_it_only_looks_for() -> None:
    """Kafka would create it with the settings of the cluster: a side topic that was deleted would come back wrong."""
    assert all(config["allow.auto.create.topics"] is False for config in configs(ClientSettings("h:1")))


def test_a_consumer_that_gathers_fetches_no_more_before_its_pause_and_then_all() -> None:
    settings = ClientSettings("h:1")
    names = ("fetch.queue.backoff.ms", "queued.min.messages", "fetch.message.max.bytes")
    assert [settings.consumer_config("g").get(name) for name in names] == [20, 20_000, None]
    assert [settings.consumer_config("g", 200).get(name) for name in names] == [200, 1, 16 * 2**20]
    own = ClientSettings("h:1", properties={"queued.min.messages": "5"})
    assert own.consumer_config("g", 200)["queued.min.messages"] == "5", "an operator's own property counts"
