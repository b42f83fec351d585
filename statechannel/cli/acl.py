"""Commands `statechannel acl show|apply|check`: Kafka rights of each role (design/security.md)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

from statechannel.cli.kit.confirmation import say_dry_run
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.fitted_tables import Column
from statechannel.cli.kit.options import Connect, OutputAs, commands, option, with_connection
from statechannel.cli.kit.output import Output, print_json, print_rows, say
from statechannel.errors import ExitCode, UsageError
from statechannel.kafka.acls import (
    ANY_HOST,
    AclAdmin,
    AclComparison,
    AclResource,
    AclRule,
    Role,
    compare,
    lacking,
    principal_hint,
    rules_of,
    user_of,
)
from statechannel.protocol.log import Topic
from statechannel.queries.live_log import describe_topic, notify_if_slow

app = commands("Kafka ACLs of brokers, operators, auditors and Spark jobs: show, apply, check.")

_PRINCIPAL = re.compile(r"[A-Za-z]+:.+").fullmatch

RoleOption = Annotated[Role, option("--role", "Role; design/security.md lists the rights of each.")]
Host = Annotated[str, option("--host ADDRESS", "Host of the clients; * for all.")]
_RIGHT = ("resource", "name", "right")
_PRINCIPAL_HELP = "Kafka principal, e.g. User:b1."


@app.command()
@with_connection
def show(
    connect: Connect,
    role: RoleOption,
    principal: Annotated[
        str | None, option("--principal User:NAME", f"{_PRINCIPAL_HELP} Compares its ACLs with the role.")
    ] = None,
    host: Host = ANY_HOST,
    output: OutputAs = Output.TABLE,
) -> None:
    """List the rights of a role; with --principal also those that the principal has, lacks, and has in addition."""
    if principal is None:
        # Nothing of this is in Kafka: it is shown also where none is.
        named = connect.settings().channel.name
        _print(role, named, principal, rules_of(role, named), None, output)
        return
    _require_principal(principal)
    connection = connect()
    name = connection.topics.channel
    rules = rules_of(role, name)
    with notify_if_slow(connection):
        bindings = AclAdmin(connection.client, timeout_s=connection.timeout_s).of(principal)
    _print(role, name, principal, rules, compare(rules, bindings, channel=name, host=host), output)


@app.command()
@with_connection
def apply(
    connect: Connect,
    role: RoleOption,
    principal: Annotated[str, option("--principal User:NAME", _PRINCIPAL_HELP)],
    host: Host = ANY_HOST,
    dry_run: Annotated[bool, option("--dry-run", "Show what is missing; create nothing.")] = False,
    output: OutputAs = Output.TABLE,
) -> None:
    """Create the ACLs that a principal lacks for a role; removes none, and is idempotent."""
    _require_principal(principal)
    connection = connect()
    channel = connection.topics.channel
    rules = rules_of(role, channel)
    admin = AclAdmin(connection.client, timeout_s=connection.timeout_s)
    with notify_if_slow(connection):
        compared = compare(rules, admin.of(principal), channel=channel, host=host)
        if not dry_run:
            admin.create(compared.missing, principal, host=host)
    created = () if dry_run else compared.missing
    if output is Output.JSON:
        created_fields = {"made": [asdict(rule) for rule in created]}
        print_json(_document(role, channel, principal, rules, compared) | created_fields)
    else:
        nothing = f"nothing is missing: {principal} has every right of the role {role} on {channel}"
        print_rows(_RIGHT, compared.missing, empty=nothing)
        if compared.missing:
            say(f"{len(compared.missing)} {'are missing' if dry_run else 'created'}")
        if dry_run:
            say_dry_run(connection.place)
        _print_rest(compared)
    if compared.forbidden:
        rule, why = compared.forbidden[0]
        raise CommandError(
            f"{len(compared.forbidden)} rights of the role {role} are denied to {principal}, and deny takes precedence; "
            f"the first is {rule}, denied by the ACL on {why}",
            hint="Remove the denying ACL: `kafka-acls.sh --remove --deny-principal ...`.",
            code=ExitCode.REJECTED,
        )


@app.command()
@with_connection
def check(connect: Connect, role: RoleOption, output: OutputAs = Output.TABLE) -> None:
    """Check the rights of this client itself, over the connection of this command; exit code 11 if one is missing."""
    connection = connect()
    channel = connection.topics.channel
    rules = rules_of(role, channel)
    with notify_if_slow(connection):
        allowed = AclAdmin(connection.client, timeout_s=connection.timeout_s).allowed(rules)
    missing = lacking(rules, allowed)
    rows = [asdict(rule) | {"state": _state(rule, missing, allowed)} for rule in rules]
    if output is Output.JSON:
        print_json({"role": role, "channel": channel, "rights": rows, "missing": [asdict(rule) for rule in missing]})
    else:
        print_rows((*_RIGHT, "state"), rows)
    if allowed.get((AclResource.TOPIC, channel)) is None:
        describe_topic(connection, Topic.CHANNEL)  # Kafka tells no rights on a topic that does not exist
    if missing:
        who = user_of(connection.client)
        raise CommandError(
            f"{who} lacks {len(missing)} Kafka rights of the role {role} of channel {channel}",
            hint=f"Create them: `statechannel acl apply --role {role} --principal {principal_hint(who)}`.",
            code=ExitCode.KAFKA_DENIED,
        )


def _state(rule: AclRule, missing: Sequence[AclRule], allowed: Any) -> str:
    if rule in missing:
        return "missing"
    return "unknown" if allowed.get((rule.resource, rule.name)) is None else "allowed"


def _require_principal(principal: str) -> None:
    if _PRINCIPAL(principal) is None:
        raise UsageError(
            f"--principal {principal!r} is not a valid Kafka principal",
            hint="Use KIND:NAME, e.g. User:b1, or with certificates User:CN=b1,O=...",
        )


def _document(
    role: Role, channel: str, principal: str | None, rules: Sequence[AclRule], compared: AclComparison | None
) -> dict[str, Any]:
    rights = {"role": role, "channel": channel, "principal": principal, "rights": [asdict(rule) for rule in rules]}
    if compared is None:
        return {**rights, "missing": None, "forbidden": None, "beyond": None}
    return {
        **rights,
        "missing": [asdict(rule) for rule in compared.missing],
        "forbidden": [asdict(rule) | {"by": str(binding)} for rule, binding in compared.forbidden],
        "beyond": [str(binding) for binding in compared.beyond],
    }


def _print(
    role: Role,
    channel: str,
    principal: str | None,
    rules: Sequence[AclRule],
    compared: AclComparison | None,
    output: Output,
) -> None:
    if output is Output.JSON:
        print_json(_document(role, channel, principal, rules, compared))
        return
    if compared is None:
        print_rows(_RIGHT, rules)
        return
    forbidden, missing = {rule for rule, _ in compared.forbidden}, compared.missing

    def state(rule: AclRule) -> str:
        return "forbidden" if rule in forbidden else "missing" if rule in missing else "allowed"

    print_rows((*_RIGHT, Column("state", of=state)), rules)
    _print_rest(compared)


def _print_rest(compared: AclComparison) -> None:
    for binding in compared.beyond:
        say(f"beyond the role: {binding} ({binding.principal})")
