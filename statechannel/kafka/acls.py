"""ACLs of a cluster: reading them, creating missing ones, and the rights of this client itself."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from confluent_kafka import KafkaError, TopicCollection
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from statechannel.kafka.acl_rules import (
    ALL_ENDS,
    ANY_HOST,
    AclResource,
    AclRule,
    Binding,
    Right,
    Role,
    lacking,
    rules_of,
)
from statechannel.kafka.admin import BoundedAdmin, CallFailedError
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.errors import (
    KafkaAccessDeniedError,
    is_topic_missing,
    translate,
)

_ANYBODY = "User:*"
_AUTHORIZER = "authorizer.class.name"
_ANYTHING = (AclOperation.ANY, AclPermissionType.ANY)
_filter: Any = AclBindingFilter  # None stands for "any", which its annotations do not know
_RESOURCES = {AclResource.TOPIC: ResourceType.TOPIC, AclResource.GROUP: ResourceType.GROUP}
_OPERATIONS = {
    Right.READ: AclOperation.READ,
    Right.WRITE: AclOperation.WRITE,
    Right.CREATE: AclOperation.CREATE,
    Right.DESCRIBE: AclOperation.DESCRIBE,
    Right.DESCRIBE_CONFIGS: AclOperation.DESCRIBE_CONFIGS,
}
_REFUSED = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED})

Answer = TypeVar("Answer")


class RightsMissingError(KafkaAccessDeniedError):
    """This client lacks rights of its role.

    Attributes:
        missing: The missing rights.
    """

    def __init__(self, role: Role, who: str, channel: str, missing: Collection[AclRule]) -> None:
        listed = "; ".join(str(rule) for rule in missing)
        super().__init__(
            f"{who} lacks Kafka rights of the role {role} of channel {channel}. Missing: {listed}.",
            hint=f"Create them: `statechannel acl apply --role {role} --principal {principal_hint(who)}`.",
        )
        self.missing = tuple(missing)


def user_of(settings: ClientSettings) -> str:
    """This client's user name, for messages."""
    name = settings.properties.get("sasl.username")
    return f"user {name}" if name else "this client"


def principal_hint(who: str) -> str:
    """The principal to name in a hint."""
    return f"User:{who.removeprefix('user ')}" if who.startswith("user ") else "User:NAME"


class AclAdmin(BoundedAdmin):
    """Client for reading and creating ACLs."""

    def of(self, principal: str) -> tuple[Binding, ...]:
        """The ACLs of a principal, and of `User:*`.

        Raises:
            KafkaAccessDeniedError: This client may not list ACLs (Describe on the cluster).
            KafkaClientError: The cluster has no ACLs at all.
        """
        self._require_look()
        bindings: list[Binding] = []
        for name in dict.fromkeys((principal, _ANYBODY)):
            wanted = _filter(ResourceType.ANY, None, ResourcePatternType.ANY, name, None, *_ANYTHING)
            bindings += [
                _binding(entry) for entry in self._call(f"reading the ACLs of {name}", self._described(wanted))
            ]
        return tuple(bindings)

    def _require_look(self) -> None:
        """Check the right to list ACLs first: the client library returns an empty list if it is missing."""
        doing = "reading the ACLs"
        cluster = self._call(
            doing,
            lambda left_s: self._admin.describe_cluster(include_authorized_operations=True, request_timeout=left_s),
        )
        operations = {_operation_name(operation) for operation in cluster.authorized_operations or ()}
        if Right.DESCRIBE not in operations:
            raise translate(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED), doing)
        if Right.DESCRIBE_CONFIGS in operations and not self._has_authorizer(cluster.nodes[0].id):
            raise translate(KafkaError(KafkaError.SECURITY_DISABLED), doing)

    def _has_authorizer(self, node: int) -> bool:
        resource = ConfigResource(ResourceType.BROKER, str(node))
        entries = self._call(
            f"reading the settings of Kafka's broker {node}",
            lambda left_s: self._admin.describe_configs([resource], request_timeout=left_s)[resource],
        )
        return _AUTHORIZER not in entries or bool(entries[_AUTHORIZER].value)

    def _described(self, wanted: AclBindingFilter) -> Callable[[float], Future[Any]]:
        return lambda left_s: self._admin.describe_acls(wanted, request_timeout=left_s)

    def create(self, rules: Iterable[AclRule], principal: str, *, host: str = ANY_HOST) -> None:
        """Grant a principal these rules. Kafka ignores existing ones.

        Raises:
            KafkaAccessDeniedError: This client may not (Alter on the cluster); some may have been created.
        """
        for rule in rules:
            binding = AclBinding(
                _RESOURCES[rule.resource],
                rule.name,
                ResourcePatternType.LITERAL,
                principal,
                host,
                _OPERATIONS[rule.right],
                AclPermissionType.ALLOW,
            )
            self._call(f"allowing {principal} {rule}", self._created(binding))

    def _created(self, binding: AclBinding) -> Callable[[float], Future[Any]]:
        return lambda left_s: next(iter(self._admin.create_acls([binding], request_timeout=left_s).values()))

    def allowed(self, rules: Iterable[AclRule]) -> Mapping[tuple[str, str], frozenset[str] | None]:
        """This client's operations on the topics and groups of these rules, as Kafka reports them (KIP-430).

        None for a topic that does not exist, and if the cluster does not report them.
        """
        wanted = tuple(rules)
        topics = {rule.name for rule in wanted if rule.resource is AclResource.TOPIC}
        groups = {rule.name for rule in wanted if rule.resource is AclResource.GROUP}
        rights: dict[tuple[str, str], frozenset[str] | None] = {}
        for name in sorted(topics):
            rights[AclResource.TOPIC, name] = self._operations(f"describing topic {name}", self._topic(name))
        for name in sorted(groups):
            rights[AclResource.GROUP, name] = self._operations(f"describing group {name}", self._group(name))
        return rights

    def _topic(self, name: str) -> Callable[[float], Future[Any]]:
        return lambda left_s: self._admin.describe_topics(
            TopicCollection([name]), include_authorized_operations=True, request_timeout=left_s
        )[name]

    def _group(self, name: str) -> Callable[[float], Future[Any]]:
        return lambda left_s: self._admin.describe_consumer_groups(
            [name], include_authorized_operations=True, request_timeout=left_s
        )[name]

    def _operations(self, doing: str, ask: Callable[[float], Future[Any]]) -> frozenset[str] | None:
        def once(left_s: float) -> frozenset[str] | None:
            try:
                description = self._wait(ask(left_s), doing)
            except CallFailedError as failure:
                if failure.code in _REFUSED:
                    return frozenset()
                if is_topic_missing(failure):
                    return None
                raise
            operations = description.authorized_operations
            return None if operations is None else frozenset(_operation_name(operation) for operation in operations)

        return self._patiently(once)

    def _call(self, doing: str, ask: Callable[[float], Future[Any]]) -> Any:
        return self._patiently(lambda left_s: self._wait(ask(left_s), doing))


def require_rights(
    settings: ClientSettings, role: Role, channel: str, *, ends: Collection[str] = ALL_ENDS, timeout_s: float = 20.0
) -> None:
    """Raise if rights of a role are missing, naming them.

    Otherwise a broker without write access would wait forever to read back its records. Clusters without ACLs allow
    everything. Topics that do not exist are skipped.

    Args:
        ends: Suffixes of the topics to check.

    Raises:
        RightsMissingError: At least one is missing.
    """
    rules = rules_of(role, channel, ends)
    missing = lacking(rules, AclAdmin(settings, timeout_s=timeout_s).allowed(rules))
    if missing:
        raise RightsMissingError(role, user_of(settings), channel, missing)


def _operation_name(operation: AclOperation) -> str:
    return "".join(part.capitalize() for part in operation.name.split("_"))


def _binding(entry: Any) -> Binding:
    return Binding(
        entry.restype.name.lower(),
        entry.name,
        entry.resource_pattern_type.name.lower(),
        entry.principal,
        entry.host,
        _operation_name(entry.operation),
        entry.permission_type is AclPermissionType.ALLOW,
    )
