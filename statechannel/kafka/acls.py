"""ACLs of a cluster: reading them, creating missing ones, and the rights of this client itself."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from confluent_kafka import KafkaError, TopicCollection
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from statechannel.kafka.admin import BoundedAdmin, CallFailedError
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.errors import KafkaAccessDeniedError, is_topic_missing, translate


class Role(StrEnum):
    BROKER = "broker"
    OPERATOR = "operator"
    AUDITOR = "auditor"
    JOBS = "jobs"
    ROUTER = "router"


class AclResource(StrEnum):
    TOPIC = "topic"
    GROUP = "group"


class Right(StrEnum):
    READ = "Read"
    WRITE = "Write"
    CREATE = "Create"
    DESCRIBE = "Describe"
    DESCRIBE_CONFIGS = "DescribeConfigs"


ALL: Final = "All"
ANY_HOST: Final = "*"
_IMPLIED: Mapping[str, frozenset[str]] = MappingProxyType(
    # By Kafka's authorizer: the latter implies the former.
    {
        Right.DESCRIBE: frozenset({Right.READ, Right.WRITE, "Delete", "Alter"}),
        Right.DESCRIBE_CONFIGS: frozenset({"AlterConfigs"}),
    }
)

_LOOK = (Right.READ, Right.DESCRIBE_CONFIGS)
_SEAT = (Right.DESCRIBE, Right.DESCRIBE_CONFIGS)
_CHANGE = (Right.READ, Right.WRITE, Right.DESCRIBE_CONFIGS)
_MAKE = (*_CHANGE, Right.CREATE)

CHANNEL, REGISTRY, REQUESTS, LEADER = "", "-registry", "-requests", "-leader"
LOADS, BUNDLES, POLICIES, DECISIONS = "-broker-load", "-top-bundles", "-policies", "-decisions"
OWN_ENDS: Final = (CHANNEL, REGISTRY, REQUESTS, LEADER)
"""The channel's own topics."""
SIDE_ENDS: Final = (LOADS, BUNDLES, POLICIES, DECISIONS)
"""Topics of the balancing extension."""
ALL_ENDS: Final = OWN_ENDS + SIDE_ENDS
READER_GROUP: Final = "-reader"

TOPIC_RIGHTS: Mapping[Role, Mapping[str, tuple[Right, ...]]] = MappingProxyType(
    {
        # The balancing extension makes its four topics where they are missing.
        Role.BROKER: {
            CHANNEL: _CHANGE,
            REGISTRY: _CHANGE,
            REQUESTS: _CHANGE,
            LEADER: _SEAT,
            LOADS: _MAKE,
            BUNDLES: _MAKE,
            POLICIES: (*_LOOK, Right.CREATE),
            DECISIONS: _MAKE,
        },
        # Asks brokers by the requests topic, lays down policies, and makes the channel's own topics (`init`).
        Role.OPERATOR: {
            CHANNEL: (*_LOOK, Right.CREATE),
            REGISTRY: (*_LOOK, Right.CREATE),
            REQUESTS: _MAKE,
            LEADER: (*_SEAT, Right.CREATE),
            LOADS: _LOOK,
            BUNDLES: _LOOK,
            POLICIES: _MAKE,
            DECISIONS: _LOOK,
        },
        Role.AUDITOR: {
            CHANNEL: _LOOK,
            REGISTRY: _LOOK,
            REQUESTS: _LOOK,
            LEADER: _SEAT,
            LOADS: _LOOK,
            BUNDLES: _LOOK,
            POLICIES: _LOOK,
            DECISIONS: _LOOK,
        },
        # The Spark jobs read logs; what they make lies in tables, not in Kafka.
        # `load-views` writes tombstones for the load reports of dead brokers.
        Role.JOBS: {CHANNEL: _LOOK, LOADS: _CHANGE, BUNDLES: _CHANGE},
        # Reads who owns what; to have bundles assigned it needs Write on the requests topic as well, as operators have it.
        Role.ROUTER: {CHANNEL: _LOOK, REGISTRY: _LOOK},
    }
)
"""By the end of the topic's name. Read and Write imply Describe, by Kafka's authorizer."""

_GROUP_RIGHTS: Mapping[Role, Mapping[str, tuple[Right, ...]]] = MappingProxyType(
    {
        Role.BROKER: {LEADER: (Right.READ,), READER_GROUP: (Right.DESCRIBE,)},
        Role.OPERATOR: {LEADER: (Right.DESCRIBE,), READER_GROUP: (Right.DESCRIBE,)},
        Role.AUDITOR: {LEADER: (Right.DESCRIBE,), READER_GROUP: (Right.DESCRIBE,)},
        Role.JOBS: {READER_GROUP: (Right.DESCRIBE,)},
        Role.ROUTER: {READER_GROUP: (Right.DESCRIBE,)},
    }
)


@dataclass(frozen=True, slots=True, order=True)
class AclRule:
    """One right of a role, on one literal name: a prefix would also match other channels' topics."""

    resource: AclResource
    name: str
    right: Right

    def __str__(self) -> str:
        return f"{self.right} on {self.resource} {self.name}"


@dataclass(frozen=True, slots=True)
class Binding:
    """An existing ACL of the cluster.

    Attributes:
        operation: One of Kafka's operations, `All` among them.
        pattern: `literal` or `prefixed`; the literal name `*` stands for every name.
        allows: False: it denies.
    """

    resource: str
    name: str
    pattern: str
    principal: str
    host: str
    operation: str
    allows: bool

    def concerns(self, rule: AclRule) -> bool:
        """Whether it has the subject of a rule, for any host."""
        if self.resource != rule.resource:
            return False
        if self.pattern == "prefixed":
            return rule.name.startswith(self.name)
        return self.name in (rule.name, "*")

    def grants(self, rule: AclRule, host: str) -> bool:
        enough = {rule.right, ALL, *_IMPLIED.get(rule.right, ())}
        return self.allows and self.operation in enough and self.host in (ANY_HOST, host) and self.concerns(rule)

    def forbids(self, rule: AclRule) -> bool:
        """Whether it denies a rule, on at least one host."""
        return not self.allows and self.operation in (rule.right, ALL) and self.concerns(rule)

    def __str__(self) -> str:
        end = "*" if self.pattern == "prefixed" else ""
        what = f"{self.operation} on {self.resource} {self.name}{end}"
        return what if self.host == ANY_HOST else f"{what} from {self.host}"


@dataclass(frozen=True, slots=True)
class AclComparison:
    """Comparison of a principal's ACLs with a role's rules.

    Attributes:
        missing: Rules that no ACL grants.
        forbidden: Rules that an ACL denies, with that ACL: granting does not help.
        beyond: ACLs of the principal on the channel's topics and groups that the role does not need.
    """

    missing: tuple[AclRule, ...]
    forbidden: tuple[tuple[AclRule, Binding], ...]
    beyond: tuple[Binding, ...]


def rules_of(role: Role, channel: str, ends: Collection[str] = ALL_ENDS) -> tuple[AclRule, ...]:
    """The rights of a role on a channel.

    Args:
        ends: Of the topics that are meant.
    """
    topics = [
        AclRule(AclResource.TOPIC, f"{channel}{end}", right)
        for end, rights in TOPIC_RIGHTS[role].items()
        if end in ends
        for right in rights
    ]
    groups = [
        AclRule(AclResource.GROUP, f"{channel}{end}", right)
        for end, rights in _GROUP_RIGHTS[role].items()
        for right in rights
    ]
    return (*topics, *groups)


def compare(
    rules: Iterable[AclRule], bindings: Iterable[Binding], *, channel: str, host: str = ANY_HOST
) -> AclComparison:
    wanted, existing = tuple(rules), tuple(bindings)
    forbidden = tuple((rule, binding) for rule in wanted for binding in existing if binding.forbids(rule))
    relevant = [binding for binding in existing if binding.allows and _concerns_channel(binding, channel)]
    beyond = [binding for binding in relevant if not any(_needs(binding, rule) for rule in wanted)]
    return AclComparison(
        tuple(rule for rule in wanted if not any(binding.grants(rule, host) for binding in existing)),
        forbidden,
        tuple(beyond),
    )


def _needs(binding: Binding, rule: AclRule) -> bool:
    """Whether a rule needs exactly this right, or one that it implies."""
    # Describe comes with Read; to hold it apart is no more than the role has.
    lesser = binding.operation == Right.DESCRIBE and rule.right in _IMPLIED[Right.DESCRIBE]
    exactly = (binding.resource, binding.name) == (rule.resource, rule.name)
    return exactly and binding.pattern == "literal" and (binding.operation == rule.right or lesser)


def _concerns_channel(binding: Binding, channel: str) -> bool:
    if binding.pattern == "prefixed":
        return binding.name.startswith(channel) or channel.startswith(binding.name)
    return binding.name in ("*", channel) or binding.name.startswith(f"{channel}-")


def lacking(rules: Iterable[AclRule], allowed: Mapping[tuple[str, str], frozenset[str] | None]) -> tuple[AclRule, ...]:
    """The rules that a client lacks.

    Args:
        allowed: By resource and name what Kafka says this client may do there; None where it says nothing (it does not
            exist, or the broker does not tell).
    """
    missing = []
    for rule in rules:
        rights = allowed.get((rule.resource, rule.name))
        if rights is not None and rule.right not in rights:
            missing.append(rule)
    return tuple(missing)


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


class RightsMissingError(KafkaAccessDeniedError):
    """This client lacks rights of its role."""

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
    return f"User:{who.removeprefix('user ')}" if who.startswith("user ") else "User:NAME"


class AclAdmin(BoundedAdmin):
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
