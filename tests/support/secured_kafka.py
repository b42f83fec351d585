"""A Kafka that asks who is there: TLS, SCRAM-SHA-512, ACLs; users and what they connect with.

To try it by hand: `python -m tests.support.secured_kafka FOLDER` (design/security.md).
"""

import secrets
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trustme
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from statechannel.embedded import BrokerOptions, BrokerSecurity, KafkaServer
from tests.support.kafka_lanes import CLEANER_PROPERTIES
from tests.support.waits import WAIT_S

SUPERUSER = "kafka-admin"


def make_certificates(folder: Path, name: str) -> tuple[Path, Path]:
    """Key and certificate of a broker on loopback, and the authority that signed it."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", "localhost", common_name=name)
    key = load_pem_private_key(issued.private_key_pem.bytes(), password=None)
    # Kafka reads keys as PKCS #8 only.
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    certificate, ca = folder / "broker.pem", folder / "ca.pem"
    certificate.write_bytes(text + b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    certificate.chmod(0o600)
    authority.cert_pem.write_to_path(ca)
    return certificate, ca


@dataclass(slots=True)
class SecuredKafka:
    """A running one. `passwords` holds every user's."""

    server: KafkaServer
    folder: Path
    authority: Path
    passwords: dict[str, str] = field(default_factory=dict)

    @property
    def bootstrap_servers(self) -> str:
        return self.server.bootstrap_servers

    def properties(self, user: str) -> dict[str, str]:
        """What a client of this user connects with."""
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": self.passwords[user],
            "ssl.ca.location": str(self.authority),
        }

    def file(self, user: str, **more: str) -> Path:
        """The same as a properties file."""
        path = self.folder / f"{user}.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in (self.properties(user) | more).items()))
        path.chmod(0o600)
        return path

    def add_users(self, **passwords: str) -> None:
        """Make users, as `kafka-configs.sh --alter --entity-type users` does."""
        config = self.properties(SUPERUSER) | {"bootstrap.servers": self.bootstrap_servers}
        admin = AdminClient(config)
        wanted = [
            UserScramCredentialUpsertion(
                name, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), password.encode()
            )
            for name, password in passwords.items()
        ]
        for answer in admin.alter_user_scram_credentials(wanted).values():
            answer.result(WAIT_S)
        self.passwords |= passwords

    def forbid_write(self, user: str, topic: str, *, end: bool = False) -> None:
        """Deny a user what its role allows it, or end that."""
        admin = AdminClient(self.properties(SUPERUSER) | {"bootstrap.servers": self.bootstrap_servers})
        terms = (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, f"User:{user}", "*", AclOperation.WRITE)
        if end:
            answers = admin.delete_acls([AclBindingFilter(*terms, AclPermissionType.DENY)])
        else:
            answers = admin.create_acls([AclBinding(*terms, AclPermissionType.DENY)])
        for answer in answers.values():
            answer.result(WAIT_S)


@contextmanager
def secured_kafka(folder: Path, **users: str) -> Iterator[SecuredKafka]:
    """Start one in a folder, with these users and their passwords; nobody may do anything before ACLs are made."""
    folder.mkdir(parents=True, exist_ok=True)
    certificate, authority = make_certificates(folder, SUPERUSER)
    password = secrets.token_urlsafe(16)
    security = BrokerSecurity(
        certificate_pem=certificate, authority_pem=authority, superuser=SUPERUSER, password=password
    )
    options = BrokerOptions(properties=CLEANER_PROPERTIES, security=security, start_timeout_s=WAIT_S)
    server = KafkaServer(folder / "kafka", options=options)
    server.start()
    try:
        kafka = SecuredKafka(server, folder, authority, {SUPERUSER: password})
        kafka.add_users(**users)
        yield kafka
    finally:
        server.stop()


def main(folder: Path) -> None:
    names = (SUPERUSER, "broker", "operator", "auditor", "jobs")
    with secured_kafka(folder, **{name: secrets.token_urlsafe(16) for name in names[1:]}) as kafka:
        for name in names:
            print(f"{name}: --bootstrap-servers {kafka.bootstrap_servers} --kafka-config {kafka.file(name)}")
        print("Ctrl-C ends it", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
