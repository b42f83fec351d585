"""Rights of each role on a channel's topics and groups, as data, and their comparison with ACLs. Pure.

The one place for it: `statechannel acl`, a broker's check at start and design/security.md are made from these tables.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class Role(StrEnum):
    """Roles of Kafka clients."""

    BROKER = "broker"
    OPERATOR = "operator"
    AUDITOR = "auditor"
    JOBS = "jobs"


class AclResource(StrEnum):
    """Kafka's resource types."""

    TOPIC = "topic"
    GROUP = "group"


class Right(StrEnum):
    """Kafka's operations, as far as a channel needs them."""

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
        Role.JOBS: {CHANNEL: _LOOK, LOADS: _LOOK, BUNDLES: _LOOK},
    }
)
"""By the end of the topic's name. Read and Write imply Describe, by Kafka's authorizer."""

_GROUP_RIGHTS: Mapping[Role, Mapping[str, tuple[Right, ...]]] = MappingProxyType(
    {
        Role.BROKER: {LEADER: (Right.READ,), READER_GROUP: (Right.DESCRIBE,)},
        Role.OPERATOR: {LEADER: (Right.DESCRIBE,), READER_GROUP: (Right.DESCRIBE,)},
        Role.AUDITOR: {LEADER: (Right.DESCRIBE,), READER_GROUP: (Right.DESCRIBE,)},
        Role.JOBS: {READER_GROUP: (Right.DESCRIBE,)},
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
        """Whether it allows a rule for clients on a host."""
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
    """Compare a role's rules with the ACLs of a principal (and of `User:*`)."""
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
