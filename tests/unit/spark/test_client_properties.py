"""Kafka's security, said once in librdkafka's words, as Java's client needs it."""

import re

import pytest

from spark.core.streaming import Streaming, kafka_options
from spark.errors import SparkJobError
from statechannel.kafka.client_settings import ClientSettings

FILES = {"/ca.pem": "AUTHORITY", "/me.pem": "CHAIN", "/me.key": "KEY"}
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
KERBEROS = {"sasl.mechanism": "GSSAPI", "sasl.kerberos.service.name": "kafka"}
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


def options(properties, extra=None):
    """Without the prefix and the address, which every call has."""
    client = ClientSettings("h:1", properties)
    result = kafka_options(client, extra, read_text=FILES.__getitem__)
    assert all(name.startswith("kafka.") for name in result)
    assert result.pop("kafka.bootstrap.servers") == "h:1"
    # Twice and four times as long as one answer may take.
    assert result.pop("kafka.request.timeout.ms") == "10000"
    assert result.pop("kafka.default.api.timeout.ms") == "20000"
    return {name.removeprefix("kafka."): value for name, value in result.items()}


def jaas_value(text, name):
    """What Java's parser of JAAS lines, which knows \\\\ and \\", makes of an option."""
    match = re.search(rf' {name}="((?:[^"\\]|\\.)*)"[ ;]', text)
    return re.sub(r"\\(.)", r"\1", match.group(1))


@pytest.mark.parametrize(
    ("mechanism", "module"), [("PLAIN", PLAIN), ("SCRAM-SHA-256", SCRAM), ("SCRAM-SHA-512", SCRAM)]
)
@pytest.mark.parametrize("name", ["sasl.mechanism", "sasl.mechanisms"])
def test_names_and_passwords(name, mechanism, module):
    result = options({"security.protocol": "SASL_SSL", name: mechanism, "sasl.username": "u", "sasl.password": "p"})
    assert result == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f'{module} required username="u" password="p";',
    }


@pytest.mark.parametrize("password", ["", "a b", 'quo"te', "back\\slash", 'both\\"', "\\", ";required x=", "ünï", "$1"])
def test_any_password_arrives(password):
    option = options({"sasl.mechanism": "PLAIN", "sasl.username": 'me"', "sasl.password": password})["sasl.jaas.config"]
    assert jaas_value(option, "password") == password
    assert jaas_value(option, "username") == 'me"'
    assert option.endswith('";')


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"ssl.ca.location": "/ca.pem"}, {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": "AUTHORITY"}),
        ({"ssl.ca.pem": "TEXT"}, {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": "TEXT"}),
        (
            {"ssl.certificate.location": "/me.pem", "ssl.key.location": "/me.key", "ssl.key.password": "k"},
            {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.certificate.chain": "CHAIN",
                "ssl.keystore.key": "KEY",
                "ssl.key.password": "k",
            },
        ),
        (
            {"ssl.certificate.pem": "C", "ssl.key.pem": "K"},
            {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": "C", "ssl.keystore.key": "K"},
        ),
        ({"ssl.endpoint.identification.algorithm": "none"}, {"ssl.endpoint.identification.algorithm": ""}),
        ({"ssl.endpoint.identification.algorithm": "https"}, {"ssl.endpoint.identification.algorithm": "https"}),
        (KERBEROS, KERBEROS),
        ({"fetch.wait.max.ms": "5", "client.rack": "r1"}, {"client.rack": "r1"}),
        ({}, {}),
    ],
)
def test_certificates_and_the_rest(properties, expected):
    assert options(properties) == expected


def test_a_certificate_without_its_key_is_said():
    with pytest.raises(SparkJobError, match="certificate") as error:
        options({"ssl.certificate.location": "/me.pem"})
    assert "ssl.key.location" in error.value.hint


def test_an_unreadable_file_is_said(tmp_path):
    client = ClientSettings("h:1", {"ssl.ca.location": str(tmp_path / "none.pem")})
    with pytest.raises(SparkJobError, match=r"none\.pem cannot be read") as error:
        Streaming(client=client, channel="c", checkpoint="/c").kafka()
    assert "ssl.ca.location" in str(error.value)


@pytest.mark.parametrize("mechanism", ["OAUTHBEARER", "AWS_MSK_IAM"])
def test_a_mechanism_that_cannot_be_translated(mechanism):
    with pytest.raises(SparkJobError, match=mechanism) as error:
        options({"sasl.mechanism": mechanism})
    assert "--kafka-option sasl.jaas.config" in error.value.hint
    result = options({"sasl.mechanism": mechanism}, {"sasl.jaas.config": "own;"})
    assert result == {"sasl.mechanism": mechanism, "sasl.jaas.config": "own;"}


def test_what_java_is_told_wins():
    given = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "p"}
    extra = {"security.protocol": "SASL_PLAINTEXT", "sasl.jaas.config": "own;", "receive.buffer.bytes": "1"}
    assert options(given, extra) == {"sasl.mechanism": "PLAIN", **extra}


def test_secrets_are_in_no_repr_and_no_error():
    secret = "s3cr3t-of-the-test"
    given = {"sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": secret, "ssl.key.pem": secret}
    streaming = Streaming(
        client=ClientSettings("h:1", given),
        channel="c",
        checkpoint="/c",
        kafka_properties={"sasl.jaas.config": secret},
        conf={"spark.hadoop.fs.s3a.secret.key": secret},
    )
    assert secret not in repr(streaming)
    assert "h:1" in repr(streaming)
    with pytest.raises(SparkJobError) as error:
        options(given | {"sasl.mechanism": "OTHER"})
    assert secret not in f"{error.value} {error.value.hint}"


def test_spark_reads_the_kafka_that_is_checked():
    with pytest.raises(SparkJobError, match="another Kafka"):
        options({}, {"bootstrap.servers": "elsewhere:9092"})
