"""A Kafka with TLS, SCRAM and ACLs: what each role may do suffices for its work, and for nothing else."""

import time
from collections.abc import Iterator

import pytest
import trustme
from confluent_kafka import Producer

from loaddata.samples.admin import open_admin
from loaddata.samples.kafka_cluster import read_layout
from statechannel.kafka import admin
from statechannel.kafka.acls import Role, rules_of
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.errors import KafkaAccessDeniedError
from tests.support.secured_cluster import SecuredCluster
from tests.support.secured_kafka import SUPERUSER, secured_kafka
from tests.support.waits import WAIT_S

CHANNEL = "guarded"
LOOKS = (
    ("status",),
    ("audit", "gaps"),
    ("operation", "list"),
    ("decisions",),
    ("policy", "list"),
    ("lookup", "t/n/x", "--read-only"),
    ("why", "t/n/x"),
)
CHANGES = (
    ("namespace", "create", "t/m"),
    ("transfer", "t/n/x", "--dest", "b1"),
    ("transfer", "t/n/x", "--dest", "b1", "--force", "--no-wait"),
    ("policy", "set", "pin", "t/n", "b1"),
    ("drain", "b1", "--force"),
    ("repair", "resume"),
    ("init",),
)


def accepts(cluster: SecuredCluster) -> bool:
    return any(broker["accepting"] for broker in cluster.done("operator", "brokers")["brokers"])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    """One broker that serves, an operator and an auditor with their rights, and users without any."""
    users = {name: f"{name}-pass" for name in ("broker", "operator", "auditor", "nobody", "late", "elsewhere")}
    with secured_kafka(tmp_path_factory.mktemp("secured"), **users) as kafka:
        cluster = SecuredCluster(kafka, CHANNEL)
        try:
            for role in (Role.BROKER, Role.OPERATOR, Role.AUDITOR):
                cluster.grant(role, role)
            cluster.done("operator", "init")
            cluster.spawn("b1", "broker")
            cluster.wait(lambda: accepts(cluster))
            cluster.done("operator", "namespace", "create", "t/n", "--bundles", "2", "--timeout", str(WAIT_S))
            cluster.done("operator", "lookup", "t/n/x", "--timeout", str(WAIT_S))
            yield cluster
        finally:
            cluster.end()


def test_each_role_does_its_work_and_kafka_refuses_none_of_it(cluster: SecuredCluster) -> None:
    before = len(cluster.denied())
    cluster.done("operator", "unload", "t/n/x", "--timeout", str(WAIT_S))
    cluster.done("operator", "lookup", "t/n/x", "--timeout", str(WAIT_S))
    cluster.done("operator", "policy", "set", "pin", "t/n", "b1")
    cluster.done("operator", "policy", "delete", "pin", "t/n")
    for user in ("operator", "auditor"):
        for command in LOOKS:
            cluster.done(user, *command)
    for role in ("operator", "auditor"):
        assert cluster.done(role, "acl", "check", "--role", role)["missing"] == []
    assert cluster.denied()[before:] == []
    assert "Denied" not in cluster.log("b1")


def test_an_auditor_reads_everything_and_changes_nothing(cluster: SecuredCluster) -> None:
    digest = cluster.done("auditor", "audit")["digest"]
    for command in CHANGES:
        said = cluster.refused("auditor", *command)
        assert said.startswith("error: ")
        assert "Kafka does not allow this client" in said, command
        assert f" {CHANNEL}" in said, command  # to what
        assert "hint: " in said, command
        assert "acl check --role" in said, command
    export = cluster.kafka.folder / "export.jsonl"
    assert cluster.as_("auditor", "export", str(export), for_programs=()).exit_code == 0
    assert cluster.done("auditor", "audit")["digest"] == digest
    assert all("broker id" not in line and '"t/m"' not in line for line in export.read_text().splitlines())
    missing = cluster.as_("auditor", "acl", "check", "--role", "operator")
    assert missing.exit_code == 11
    assert "Write" in missing.stdout
    assert "apply --role operator --principal User:auditor" in missing.stderr


def test_a_broker_without_its_rights_names_each_that_is_missing(cluster: SecuredCluster) -> None:
    rights = [rule for rule in rules_of(Role.BROKER, CHANNEL) if rule.name in {CHANNEL, f"{CHANNEL}-registry"}]
    said = cluster.refused("nobody", "broker", "run", "--id", "b9")
    assert all(str(rule) in said for rule in rights)
    assert "acl apply --role broker --principal User:nobody" in said
    said = cluster.refused("auditor", "broker", "run", "--id", "b9")  # it may read, and not write
    assert f"Write on topic {CHANNEL}-registry" in said
    assert f"Read on topic {CHANNEL}" not in said


def test_acls_are_made_once_and_what_is_beyond_a_role_is_told(cluster: SecuredCluster) -> None:
    apply = ("acl", "apply", "--role", "auditor", "--principal", "User:late")
    dry = cluster.done(SUPERUSER, *apply, "--dry-run")
    assert len(dry["missing"]) == len(rules_of(Role.AUDITOR, CHANNEL)) > 10
    assert dry["made"] == []
    cluster.refused("late", "status")
    assert cluster.done(SUPERUSER, *apply)["made"] == dry["missing"]
    again = cluster.done(SUPERUSER, *apply)
    assert (again["missing"], again["made"]) == ([], [])
    cluster.done("late", "status")
    shown = cluster.done(SUPERUSER, "acl", "show", "--role", "auditor", "--principal", "User:operator")
    assert f"Write on topic {CHANNEL}-requests" in shown["beyond"]
    assert shown["missing"] == []
    # Whoever is no administrator of Kafka is told so: the client library would show an empty list.
    for command in ("apply", "show"):
        said = cluster.refused("operator", "acl", command, "--role", "auditor", "--principal", "User:late")
        assert "administrators" in said


def test_no_role_reaches_another_channel_on_the_same_kafka(cluster: SecuredCluster) -> None:
    """Not even one whose name begins alike, as a prefix would."""
    other = SecuredCluster(cluster.kafka, f"{CHANNEL}-two")
    other.grant("operator", "elsewhere")
    other.done("elsewhere", "init")
    other.done("elsewhere", "status")
    for user in ("broker", "operator", "auditor"):
        other.refused(user, "status")
    cluster.refused("elsewhere", "status")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sasl.password": "not-this-one"}, "uthentication failed"),
        ({"sasl.username": "stranger"}, "uthentication failed"),
        ({"ssl.ca.location": "OTHER"}, "certificate"),
        ({"sasl.mechanism": "PLAIN"}, "mechanism"),
    ],
    ids=["wrong password", "unknown user", "unknown authority", "other mechanism"],
)
def test_whoever_cannot_prove_who_it_is_is_told_why(
    cluster: SecuredCluster, change, said, tmp_path, monkeypatch, request
) -> None:
    if "wrong password" not in request.node.name:  # which alone waits as long as users do
        monkeypatch.setattr(admin, "REFUSED_AFTER_S", 0.3)
    other = tmp_path / "other-ca.pem"
    trustme.CA().cert_pem.write_to_path(other)
    more = {key: str(other) if value == "OTHER" else value for key, value in change.items()}
    properties = cluster.kafka.properties("auditor") | more
    file = tmp_path / "wrong.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    began_s = time.monotonic()
    result = cluster.as_("auditor", "status", file=file)
    assert result.exit_code == 11, result.output
    assert time.monotonic() - began_s < 60  # not for kafka.command_timeout_s, which is 90 here
    assert said in result.stderr
    assert "hint: Check security.protocol" in result.stderr
    assert "not-this-one" not in result.output


def test_a_record_of_a_stranger_does_not_reach_the_channel(cluster: SecuredCluster) -> None:
    """Hostile asserts, heartbeats and newer formats would be believed: only brokers may write them."""
    errors: list[str] = []
    for user in ("operator", "auditor"):
        producer = Producer(
            cluster.kafka.properties(user)
            | {"bootstrap.servers": cluster.kafka.bootstrap_servers, "enable.idempotence": False}
        )
        producer.produce(CHANNEL, b'{"format":2}', b"t/n", 0, on_delivery=lambda e, _: errors.append(e.name()))
        producer.flush(WAIT_S)
    assert errors == ["TOPIC_AUTHORIZATION_FAILED"] * 2


def test_a_change_that_kafka_does_not_let_the_broker_write_is_answered_with_kafkas_code(cluster: SecuredCluster):
    """Unknown, as nothing that the broker writes can show whether an earlier try is in the log; soon, and with the reason."""
    cluster.kafka.forbid_write("broker", CHANNEL)
    try:
        said = cluster.as_("operator", "unload", "t/n/x", "--timeout", str(WAIT_S))
        assert said.exit_code != 0
        assert "TOPIC_AUTHORIZATION_FAILED" in said.stdout + said.stderr
        found = cluster.as_("operator", "doctor")
        assert "TOPIC_AUTHORIZATION_FAILED" in found.stdout
    finally:
        cluster.kafka.forbid_write("broker", CHANNEL, end=True)
    cluster.wait(lambda: accepts(cluster))


def test_a_right_that_is_taken_away_is_named_and_the_broker_goes_on_when_it_is_back(cluster: SecuredCluster) -> None:
    registry, before = f"{CHANNEL}-registry", len(cluster.log("b1"))

    def is_named() -> bool:
        lines = [line for line in cluster.log("b1")[before:].splitlines() if "append.refused" in line]
        return any(f"topic={registry} " in line and "code=TOPIC_AUTHORIZATION_FAILED" in line for line in lines)

    cluster.kafka.forbid_write("broker", registry)
    try:
        cluster.wait(lambda: is_named() and not accepts(cluster))
        said = cluster.as_(SUPERUSER, "acl", "apply", "--role", "broker", "--principal", "User:broker")
        assert said.exit_code == 3  # granting does not help
        assert f"Write on topic {registry}" in said.stderr
    finally:
        cluster.kafka.forbid_write("broker", registry, end=True)
    cluster.wait(lambda: accepts(cluster))


def test_the_planners_admin_client_enters_as_the_others_do(cluster: SecuredCluster) -> None:
    """What librdkafka is told suffices: SCRAM over TLS with an authority of one's own; who may not enter is told so."""
    kafka = cluster.kafka
    user = ClientSettings(kafka.bootstrap_servers, kafka.properties(SUPERUSER))
    with open_admin(user, timeout_s=WAIT_S) as admin:
        layout = read_layout(admin, now_ms=0)
    assert [broker.alive for broker in layout.brokers] == [True]
    assert layout.brokers[0].log_dirs
    assert layout.remarks == ()

    wrong = kafka.properties(SUPERUSER) | {"sasl.password": "wrong-secret"}
    with (
        pytest.raises(KafkaAccessDeniedError) as denied,
        open_admin(ClientSettings(kafka.bootstrap_servers, wrong), timeout_s=2),
    ):
        pass
    assert denied.value.exit_code == 11
    assert "wrong-secret" not in str(denied.value)

    stranger = {name: value for name, value in kafka.properties(SUPERUSER).items() if name != "ssl.ca.location"}
    with (
        pytest.raises(KafkaAccessDeniedError, match=r"(?i)certificate"),
        open_admin(ClientSettings(kafka.bootstrap_servers, stranger), timeout_s=2),
    ):
        pass

    powerless = ClientSettings(kafka.bootstrap_servers, kafka.properties("nobody"))
    with open_admin(powerless, timeout_s=WAIT_S) as admin, pytest.raises(KafkaAccessDeniedError) as refused:
        read_layout(admin, now_ms=0)
    assert refused.value.exit_code == 11


def test_no_log_and_no_export_has_anybodys_password(cluster: SecuredCluster) -> None:
    """The last test of this file: everything above has been written by then."""
    folder = cluster.kafka.folder
    written = [path for path in folder.rglob("*") if path.is_file() and path.suffix in {".log", ".jsonl", ".json"}]
    assert {"b1.log", "broker.log", "console.log"} <= {path.name for path in written}
    for path in written:
        text = path.read_text("utf-8", "replace")
        assert not [name for name, password in cluster.kafka.passwords.items() if password in text], path.name
    for path in (folder / "kafka" / "server.properties", folder / "operator.properties"):
        assert path.stat().st_mode & 0o077 == 0, path.name
    assert not (folder / "kafka" / "format.arguments").exists()
