"""librdkafka's words for the admin client, and what cannot be translated."""

import ssl
from pathlib import Path

import pytest
import trustme
from kafka import errors as kafka_python

from loaddata.samples.admin import addresses, admin_config, ask, kafka_errors, tls_context, translate_error
from statechannel.errors import StateChannelError
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.errors import ClientSettingRefusedError


def config_of(**properties: str) -> dict:
    given = {name.replace("_", "."): value for name, value in properties.items()}
    return admin_config(ClientSettings("a:1,b:2", given), timeout_s=3)


def test_plain_and_passwords() -> None:
    plain = config_of()
    assert (plain["bootstrap_servers"], plain["security_protocol"]) == (["a:1", "b:2"], "PLAINTEXT")
    assert plain["request_timeout_ms"] == 3_000
    scram = config_of(
        security_protocol="sasl_plaintext", sasl_mechanism="SCRAM-SHA-512", sasl_username="u", sasl_password="p"
    )
    assert [scram[name] for name in ("sasl_mechanism", "sasl_plain_username", "sasl_plain_password")] == [
        "SCRAM-SHA-512",
        "u",
        "p",
    ]
    assert "sasl_mechanism" not in config_of(sasl_mechanism="PLAIN")  # as librdkafka: the protocol decides
    assert addresses(" a:1 , ,PLAINTEXT://b:2") == ["a:1", "b:2"]


def test_tls_from_files_and_from_text(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("me")
    ca, certificate, key = (tmp_path / name for name in ("ca.pem", "me.pem", "me.key"))
    authority.cert_pem.write_to_path(ca)
    issued.cert_chain_pems[0].write_to_path(certificate)
    issued.private_key_pem.write_to_path(key)
    files = tls_context(
        {"ssl.ca.location": str(ca), "ssl.certificate.location": str(certificate), "ssl.key.location": str(key)}
    )
    text = tls_context(
        {
            "ssl.ca.pem": ca.read_text(),
            "ssl.certificate.pem": certificate.read_text(),
            "ssl.key.pem": key.read_text(),
            "ssl.endpoint.identification.algorithm": "none",
        }
    )
    for context in (files, text):
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert len(context.get_ca_certs()) == 1  # nobody but who is named
    assert (files.check_hostname, text.check_hostname) == (True, False)
    blind = tls_context({"enable.ssl.certificate.verification": "false"})
    assert blind.verify_mode is ssl.CERT_NONE


@pytest.mark.parametrize(
    "properties",
    [
        {"security.protocol": "SSL", "ssl.keystore.location": "x.p12"},
        {"security.protocol": "SSL", "ssl.ca.location": "nowhere.pem"},
        {"security.protocol": "SSL", "ssl.ca.pem": "no certificate"},
        {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"},
    ],
)
def test_what_cannot_be_translated_is_refused(properties: dict[str, str]) -> None:
    with pytest.raises(ClientSettingRefusedError) as caught:
        admin_config(ClientSettings("a:1", properties), timeout_s=1)
    assert caught.value.exit_code == 2
    assert caught.value.hint


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (kafka_python.KafkaTimeoutError("bootstrap"), 10),
        (kafka_python.NodeNotReadyError(1), 10),
        (kafka_python.UnknownBrokerIdError(5), 10),
        (ConnectionResetError("reset"), 10),
        (kafka_python.ClusterAuthorizationFailedError("no"), 11),
        (kafka_python.SaslAuthenticationFailedError("no"), 11),
        (kafka_python.KafkaConnectionError("Handshake failed: [SSL: CERTIFICATE_VERIFY_FAILED]"), 11),
        (kafka_python.UnknownTopicOrPartitionError("x"), 14),
        (kafka_python.IncompatibleBrokerVersion("x"), 14),
        (kafka_python.InvalidReplicationAssignmentError("x"), 14),
        (kafka_python.KafkaConfigurationError("x"), 2),
        (RuntimeError("Failed to find active controller id!"), 10),
    ],
)
def test_errors_have_exit_codes_and_hints(error: Exception, code: int) -> None:
    with pytest.raises(StateChannelError) as caught, kafka_errors("testing"):
        raise error
    assert caught.value.exit_code == code
    assert caught.value.hint
    assert "testing" in str(caught.value)


def test_other_errors_pass_and_secrets_do_not() -> None:
    with pytest.raises(RuntimeError, match="mine"), kafka_errors():
        raise RuntimeError("mine")
    error = translate_error(kafka_python.SaslAuthenticationFailedError("user x pass"), "connecting", secrets=("pass",))
    assert "pass" not in str(error)
    causes = [kafka_python.SaslAuthenticationFailedError("bad user"), kafka_python.KafkaConnectionError("refused")]
    late = translate_error(kafka_python.KafkaTimeoutError("bootstrap"), "connecting", causes=causes)
    assert late.exit_code == 11


def test_a_dead_controller_is_forgotten_and_asked_for_again() -> None:
    class Admin:
        _controller_id: int | None = 7

    admin, tries = Admin(), []

    def call() -> str:
        tries.append(admin._controller_id)
        if len(tries) < 3:
            raise kafka_python.NodeNotReadyError(7)
        return "answer"

    assert ask(admin, call, timeout_s=5) == "answer"
    assert tries == [7, None, None]

    def refused() -> str:
        tries.append(0)
        raise kafka_python.ClusterAuthorizationFailedError("no")

    tries.clear()
    with pytest.raises(kafka_python.ClusterAuthorizationFailedError):
        ask(admin, refused, timeout_s=5)
    assert len(tries) == 1
