"""Properties of the clients: what passes, what is refused, what is never shown."""

import time
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, ThrottleEvent

from statechannel.kafka.client_settings import (
    FIXED_KEYS,
    ClientSettings,
    make_client,
    names_servers,
    parse_override,
    parse_properties,
    place_and_size,
    to_client,
    to_topics,
)
from statechannel.kafka.errors import ClientSettingRefusedError, KafkaAccessDeniedError, KafkaAdapterError
from statechannel.settings import load
from statechannel.settings.groups_cluster import KafkaSettings

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


def test_a_callback_that_did_not_fail_is_no_reason() -> None:
    def refuse(_: object) -> None:
        raise ValueError("odd")

    settings = by_callback(f"{__name__}:make_token")
    with pytest.raises(KafkaAdapterError) as caught:
        make_client(refuse, settings.admin_config(), settings, "making a client")
    assert "making a client:" in str(caught.value)


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
    tuning = KafkaSettings.model_construct(delivery_timeout_ms=7_000, session_timeout_ms=2_000)
    settings = ClientSettings("h:1", tuning=tuning)
    producer = settings.producer_config()
    assert (producer["acks"], producer["enable.idempotence"], producer["linger.ms"]) == ("all", True, 0)
    assert producer["delivery.timeout.ms"] == 7_000
    assert "transactional.id" not in producer
    consumer = settings.consumer_config("g")
    assert consumer["auto.offset.reset"] == "error"
    assert consumer["enable.partition.eof"] is True
    election = settings.election_config("g")
    assert election["session.timeout.ms"] == 2_000
    assert election["heartbeat.interval.ms"] == 200
    assert "group.instance.id" not in election
    for config in (consumer, election):
        assert config["enable.auto.commit"] is config["enable.auto.offset.store"] is False
    admin = settings.admin_config()
    assert "logger" not in admin, "it is not polled for lines"
    assert admin["log_level"] == 0


@pytest.mark.parametrize(
    ("session_ms", "heartbeat_ms", "poll_ms"), [(6_000, 600, 60_000), (500, 100, 60_000), (90_000, 9_000, 90_000)]
)
def test_a_member_of_the_election_lives_as_long_as_its_session(session_ms: int, heartbeat_ms: int, poll_ms: int):
    config = ClientSettings("h:1", tuning=KafkaSettings.model_construct(session_timeout_ms=session_ms)).election_config(
        "g"
    )
    assert (config["heartbeat.interval.ms"], config["max.poll.interval.ms"]) == (heartbeat_ms, poll_ms)


@pytest.mark.parametrize(("request_ms", "setup_ms"), [(500, 1_000), (1_000, 1_000), (5_000, 5_000)])
def test_a_connection_has_the_time_of_a_request_and_a_second_at_least(request_ms: int, setup_ms: int) -> None:
    settings = ClientSettings("h:1", tuning=KafkaSettings.model_construct(request_timeout_ms=request_ms))
    assert {config["socket.connection.setup.timeout.ms"] for config in configs(settings)} == {setup_ms}


def test_the_tree_of_settings_reaches_the_clients() -> None:
    kafka = {
        "bootstrap_servers": "h:1",
        "delivery_timeout_ms": 12_345,
        "stall_timeout_s": 7.5,
        "properties": {"client.rack": "a", "client.id": "mine"},
    }
    settings = to_client(load(overrides={"kafka": kafka}), client_id="statechannel-b1")
    assert (settings.tuning.delivery_timeout_ms, settings.tuning.stall_timeout_s) == (12_345, 7.5)
    assert settings.oauth_callback is None
    assert (settings.client_id, settings.properties) == ("mine", {"client.rack": "a"})
    kafka["properties"] = {}
    assert to_client(load(overrides={"kafka": kafka}), client_id="b1").client_id == "b1"
    topics = to_topics(load(overrides={"channel": {"name": "mine", "segment_ms": 77_000}}))
    assert (topics.channel, topics.settings.segment_ms) == ("mine", 77_000)


@pytest.mark.parametrize(
    ("kafka", "lines", "named"),
    [
        ({}, None, False),
        ({"bootstrap_servers": "h:1"}, None, True),
        ({"properties": {"bootstrap.servers": "h:1"}}, None, True),
        ({"properties": {"client.rack": "a"}}, None, False),
        ({}, "metadata.broker.list=h:1", True),
        ({}, "client.rack=a", False),
    ],
)
def test_an_address_may_be_a_setting_or_a_property(tmp_path, kafka: dict[str, object], lines: str | None, named: bool):
    file = {} if lines is None else {"properties_file": str(write(tmp_path, lines))}
    assert names_servers(load(overrides={"kafka": kafka | file})) is named


def test_an_address_with_a_user_is_refused_without_showing_it() -> None:
    with pytest.raises(ClientSettingRefusedError) as caught:
        ClientSettings("me:hush@h:1")
    assert "hush" not in str(caught.value)


def test_an_empty_secret_hides_nothing() -> None:
    assert ClientSettings("h:1", {"sasl.password": "", "ssl.key.password": "x"}).secrets() == ("x",)


@pytest.mark.parametrize("kind", ["producer", "consumer", "admin"])
def test_what_kafka_does_to_a_client_is_noted_under_its_role(kind: str) -> None:
    settings = ClientSettings("h:1", client_id="b1")
    config = {
        "producer": settings.producer_config(),
        "consumer": settings.consumer_config("g"),
        "admin": settings.admin_config(),
    }[kind]
    made = make_client(dict, config, settings, "making a client")
    made["throttle_cb"](ThrottleEvent("kafka1", 1, 0.0))
    made["throttle_cb"](ThrottleEvent("kafka1", 1, 0.5))
    (throttle,) = settings.notes.throttles
    assert (throttle.client, throttle.kind, throttle.throttle_s) == ("b1", kind, 0.5)


@pytest.mark.parametrize("error", [KafkaException(KafkaError(KafkaError._INVALID_ARG)), TypeError(), ValueError()])
def test_a_client_that_the_library_refuses_is_one_clear_error(error: Exception) -> None:
    def refuse(_: object) -> None:
        raise error

    settings = ClientSettings("h:1")
    with pytest.raises(KafkaAdapterError, match="making a client"):
        make_client(refuse, settings.admin_config(), settings, "making a client")


@pytest.mark.parametrize(("code", "noted"), [(KafkaError.MSG_SIZE_TOO_LARGE, True), (KafkaError._TRANSPORT, False)])
def test_only_a_refusal_for_good_is_noted(code: int, noted: bool) -> None:
    settings = ClientSettings("h:1")
    refusal = settings.refusal(KafkaError(code), "t")
    assert list(settings.notes.refusals) == ([refusal] if noted else [])


class Report:
    def __init__(self, topic: str | None, key: bytes | None, value: bytes | None) -> None:
        self.topic, self.key, self.value = (lambda: topic), (lambda: key), (lambda: value)


@pytest.mark.parametrize(
    ("report", "place"),
    [
        (None, ("any topic", None)),
        (Report("t", b"key", b"value"), ("t", 8)),
        (Report("t", None, b"value"), ("t", 5)),
        (Report("t", b"key", None), ("t", 3)),
        (Report(None, None, None), ("", 0)),
    ],
)
def test_a_report_says_of_which_record_it_is(report: Any, place: tuple[str, int | None]) -> None:
    assert place_and_size(report) == place


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
