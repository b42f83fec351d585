"""Security of an embedded broker: TLS, SCRAM-SHA-512, and ACLs (design/security.md)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

MECHANISM = "SCRAM-SHA-512"
LISTENER = "SASL_SSL"
CONTROLLER = "CONTROLLER"
_LOGIN_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
_FORBIDDEN = frozenset(',[]=;"\\\n\r')


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSecurity:
    """Authentication of an embedded broker and its clients.

    Clients connect by TLS with a name and a password; ACLs grant rights, everything else is denied.
    The controller's port requires a certificate of the same authority with the superuser's common name.

    Attributes:
        certificate_pem: File with the broker's key (PKCS #8) and its certificates, the common name being `superuser`.
        authority_pem: File with the certificate of the authority that has signed it.
        superuser: User exempt from ACLs: it creates the other users and their ACLs.
        password: The superuser's.
    """

    certificate_pem: Path
    authority_pem: Path
    superuser: str
    password: str = field(repr=False)

    def __post_init__(self) -> None:
        for what, text in (("superuser", self.superuser), ("password", self.password)):
            if not text or _FORBIDDEN & set(text):
                # Kafka's own tool splits `name=..,password=..` at these, without a way to quote them.
                raise ValueError(
                    f"the {what} of a secured broker is empty, or has one of , [ ] = ; \" \\ or a line's end"
                )

    def properties(self, host: str, port: int, controller_port: int) -> dict[str, str]:
        """Kafka's settings for it; they hold the password."""
        jaas = f'{_LOGIN_MODULE} required username="{self.superuser}" password="{self.password}";'
        return {
            "listeners": f"{LISTENER}://{host}:{port},{CONTROLLER}://{host}:{controller_port}",
            "advertised.listeners": f"{LISTENER}://{host}:{port}",
            "listener.security.protocol.map": f"{LISTENER}:SASL_SSL,{CONTROLLER}:SSL",
            "inter.broker.listener.name": LISTENER,
            "sasl.enabled.mechanisms": MECHANISM,
            "sasl.mechanism.inter.broker.protocol": MECHANISM,
            f"listener.name.{LISTENER.lower()}.{MECHANISM.lower()}.sasl.jaas.config": jaas,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.certificate_pem),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority_pem),
            f"listener.name.{CONTROLLER.lower()}.ssl.client.auth": "required",
            "ssl.principal.mapping.rules": "RULE:^.*CN=([^,]+).*$/$1/,DEFAULT",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "false",
            "super.users": f"User:{self.superuser}",
        }

    def format_arguments(self) -> tuple[str, ...]:
        """Arguments for Kafka's tool that prepares the data folder: the first user must exist before the broker starts."""
        return ("--add-scram", f"{MECHANISM}=[name={self.superuser},password={self.password}]")
