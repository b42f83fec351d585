"""Commands `statechannel acl show|apply|check`: Kafka rights of each role (design/security.md)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from statechannel.cli.kit.confirmation import say_dry_run
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.live_log import describe_topic, notify_if_slow
from statechannel.cli.kit.options import Connect, OutputAs, with_connection
from statechannel.cli.kit.output import Output, print_json, print_table, say
from statechannel.errors import ExitCode
from statechannel.kafka.acls import (
    ANY_HOST,
    AclAdmin,
    AclComparison,
    AclResource,
    AclRule,
    Binding,
    Role,
    compare,
    lacking,
    principal_hint,
    rules_of,
    user_of,
)
from statechannel.protocol.log import Topic

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    help="Kafka ACLs of brokers, operators, auditors and Spark jobs: show, apply, check.",
)

_PRINCIPAL = re.compile(r"[A-Za-z]+:.+").fullmatch

RoleOption = Annotated[Role, typer.Option("--role", help="Role; design/security.md lists the rights of each.")]
Host = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Host of the clients; * for all.")]
_PRINCIPAL_HELP = "Kafka principal, e.g. User:b1."


@app.command()
@with_connection
def show(
    connect: Connect,
    role: RoleOption,
    principal: Annotated[
        str | None,
        typer.Option("--principal", metavar="User:NAME", help=f"{_PRINCIPAL_HELP} Compares its ACLs with the role."),
    ] = None,
    host: Host = ANY_HOST,
    output: OutputAs = Output.TABLE,
) -> None:
    """List the rights of a role; with --principal also those that the principal has, lacks, and has in addition."""
    if principal is None:
        # Nothing of this is in Kafka: it is shown also where none is.
        named = connect.settings().channel.name
        _print(role, named, principal, rules_of(role, named), AclComparison((), (), ()), output, known=False)
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
    principal: Annotated[str, typer.Option("--principal", metavar="User:NAME", help=_PRINCIPAL_HELP)],
    host: Host = ANY_HOST,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what is missing; create nothing.")] = False,
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
        print_json(_document(role, channel, principal, rules, compared) | {"made": [_row(rule) for rule in created]})
    else:
        print_table(
            ("resource", "name", "right"),
            [(rule.resource, rule.name, rule.right) for rule in compared.missing],
            empty=f"nothing is missing: {principal} has every right of the role {role} on {channel}",
        )
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
    states = [(rule, _state(rule, missing, allowed)) for rule in rules]
    if output is Output.JSON:
        rows = [_row(rule) | {"state": state} for rule, state in states]
        print_json({"role": role, "channel": channel, "rights": rows, "missing": [_row(rule) for rule in missing]})
    else:
        print_table(
            ("resource", "name", "right", "state"),
            [(rule.resource, rule.name, rule.right, state) for rule, state in states],
        )
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
        raise CommandError(
            f"--principal {principal!r} is not a valid Kafka principal",
            hint="Use KIND:NAME, e.g. User:b1, or with certificates User:CN=b1,O=...",
            code=ExitCode.USAGE,
        )


def _row(rule: AclRule) -> dict[str, Any]:
    return {"resource": rule.resource, "name": rule.name, "right": rule.right}


def _document(
    role: Role, channel: str, principal: str | None, rules: Sequence[AclRule], compared: AclComparison
) -> dict[str, Any]:
    return {
        "role": role,
        "channel": channel,
        "principal": principal,
        "rights": [_row(rule) for rule in rules],
        "missing": [_row(rule) for rule in compared.missing],
        "forbidden": [_row(rule) | {"by": str(binding)} for rule, binding in compared.forbidden],
        "beyond": [str(binding) for binding in compared.beyond],
    }


def _print(
    role: Role,
    channel: str,
    principal: str | None,
    rules: Sequence[AclRule],
    compared: AclComparison,
    output: Output,
    *,
    known: bool = True,
) -> None:
    if output is Output.JSON:
        document = _document(role, channel, principal, rules, compared)
        if not known:
            document |= {"missing": None, "forbidden": None, "beyond": None}
        print_json(document)
        return
    forbidden = {rule for rule, _ in compared.forbidden}

    def state(rule: AclRule) -> str:
        return "forbidden" if rule in forbidden else "missing" if rule in compared.missing else "allowed"

    headers: tuple[str, ...] = ("resource", "name", "right", "state") if known else ("resource", "name", "right")
    rows = [(rule.resource, rule.name, rule.right, *((state(rule),) if known else ())) for rule in rules]
    print_table(headers, rows)
    _print_rest(compared)


def _print_rest(compared: AclComparison) -> None:
    for binding in compared.beyond:
        say(f"beyond the role: {_format_binding(binding)}")


def _format_binding(binding: Binding) -> str:
    return f"{binding} ({binding.principal})"
