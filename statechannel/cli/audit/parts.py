"""Commands `statechannel audit history`, `gaps`, `rejected` and `diff`."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.text import Text

from statechannel.audit.difference import StateDifferences
from statechannel.audit.engine import AuditResult, Wants, parse_as_of
from statechannel.audit.errors import AuditQuestionError
from statechannel.audit.gaps import GapSums, total_gap_sum
from statechannel.audit.history import History, meant
from statechannel.audit.spool import Spool
from statechannel.cli.audit import part_tables, tables
from statechannel.cli.audit.options import AuditOptions, audit_options
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.options import with_connection
from statechannel.cli.kit.output import print_json_lists, say, stdout
from statechannel.errors import ExitCode
from statechannel.protocol.bundle import FULL_UPPER, KeyParts, parse_key


@with_connection
@audit_options
def history_of(
    asked: AuditOptions,
    name: Annotated[
        str, typer.Argument(metavar="BUNDLE|TOPIC", help="Bundle, topic, or namespace (all of its bundles).")
    ],
) -> None:
    """List every record of a bundle: verdict, writer, reason, change; across splits and re-creations."""
    title = title_of(name)
    result = asked.answer(Wants(history=name, cuts=True))
    if not result.named:
        raise not_named(name)
    rows = result.history if result.history is not None else Spool()
    if not asked.table:
        print_json_lists({"of": name} | about(asked, result), {"history": rows})
        return
    log_line(asked, result)
    part_tables.history(title, rows)


@with_connection
@audit_options
def gaps_of(
    asked: AuditOptions,
    of: Annotated[
        str | None, typer.Argument(metavar="[NAMESPACE|BUNDLE|TOPIC]", help="Only gaps of this one; default: all.")
    ] = None,
) -> None:
    """List the intervals in which no broker served a bundle, with cause and length; worst and sum by namespace."""
    with asked.as_file() as still:
        result = still.answer(Wants(gaps=True, cuts=True))
        rows, sums = _of(result, of)
        if of is not None and not len(rows) and not still.answer(Wants(history=of)).named:
            raise not_named(of)
    if not asked.table:
        head = {"namespaces": sums, "all": total_gap_sum(sums)}
        print_json_lists(about(asked, result) | head, {"gaps": rows})
        return
    log_line(asked, result)
    part_tables.gap_sums(sums)
    tables.gaps(rows, untold=tables.untold(result))


def _of(result: AuditResult, of: str | None) -> tuple[Any, list[dict[str, Any]]]:
    """Gaps of a bundle, of a namespace, or of every bundle that held a topic, with their sums."""
    every = result.gaps if result.gaps is not None else Spool()
    if of is None:
        return every, list(result.gap_sums or ())
    try:
        wanted, _ = meant(of)
    except ValueError as error:
        raise AuditQuestionError(
            f"{error}.", hint="Use tenant/namespace, tenant/namespace/0x..._0x... or tenant/namespace/topic."
        ) from None
    topic = parse_key(of.encode()) is None
    rows = Spool()
    sums = GapSums()
    for gap in every:
        if of in (gap["bundle"], gap["bundle"].rpartition("/")[0]) or (topic and _holds(gap["bundle"], wanted)):
            rows.append(gap)
            sums.take(gap)
    return rows, sums.rows()


def _holds(bundle: str, wanted: KeyParts) -> bool:
    parts = parse_key(bundle.encode())
    if parts is None or parts.namespace != wanted.namespace:
        return False
    return parts.lower <= wanted.lower and (wanted.lower < parts.upper or parts.upper == FULL_UPPER)


@with_connection
@audit_options
def rejected(asked: AuditOptions) -> None:
    """Count rejected records by reason, by writer, and by the writer of the accepted record that came first."""
    result = asked.answer(Wants(rejected=True, cuts=True))
    answer = result.rejected or {}
    if not asked.table:
        print_json_lists(about(asked, result) | {"rejected": answer}, {})
        return
    log_line(asked, result)
    part_tables.rejected(answer, untold=tables.untold(result))


@with_connection
@audit_options
def diff(
    asked: AuditOptions,
    t1: Annotated[str, typer.Argument(metavar="T1", help="Offset or time, as for --as-of; inclusive.")],
    t2: Annotated[str | None, typer.Argument(metavar="T2", help="Later moment. Default: the end of the log.")] = None,
    as_of: Annotated[str | None, typer.Option("--as-of", hidden=True)] = None,
) -> None:
    """Compare the accepted states of two moments: owners, states, generations, created and deleted bundles."""
    if as_of is not None:
        raise AuditQuestionError("diff compares T1 with T2 and does not support --as-of.", hint="Remove --as-of.")
    first, second = parse_as_of(t1, "T1"), None if t2 is None else parse_as_of(t2, "T2")
    t2 = t2 or "the end"
    with asked.as_file() as still:
        before = still.answer(Wants(states=True, cuts=True), first)
        after = still.answer(Wants(states=True, cuts=True), second)
    _in_order(before, after, t1, t2)
    unsure = {number: side for side in (after, before) for number in side.complete.get("incomplete", ())}
    differences = StateDifferences(len(before.answer["end_offsets"]), frozenset(unsure))
    rows = Spool()
    for row in differences.rows(before.states or (), after.states or ()):
        rows.append(row)
    head: dict[str, Any] = {
        "from": part_tables.side(t1, before),
        "to": part_tables.side(t2, after),
        "counts": dict(sorted(differences.counts.items())),
        "owners": differences.moved(),
    }
    if unsure:
        head |= {
            "incomplete": sorted(unsure),
            "complete_from": (before if before.complete else after).complete["complete_from"],
        }
    if not asked.table:
        print_json_lists(head, {"differences": rows})
        return
    for name, moment, text in (("T1", first, t1), ("T2", second, t2)):
        if moment is not None and moment.offset is not None and moment.offset >= _last_end(after):
            say(f"note: {name} {text} is past the end of every partition: it means the end of the log")
    part_tables.differences(head, rows, untold=any(tables.untold(result) for result in (before, after)))


def _last_end(result: AuditResult) -> int:
    return max(result.answer["end_offsets"].values(), default=0)


def _in_order(before: AuditResult, after: AuditResult, t1: str, t2: str) -> None:
    cuts = (before.cuts or {}), (after.cuts or {})
    for number, cut in cuts[0].items():
        other = cuts[1].get(number)
        if other is not None and cut.last_offset > other.last_offset:
            raise AuditQuestionError(
                f"{t1} is later than {t2}: its last offset in partition {number} is {cut.last_offset}, not {other.last_offset}.",
                hint="Give the earlier moment first.",
            )


def about(asked: AuditOptions, result: AuditResult) -> dict[str, Any]:
    """Fields on the log itself, for JSON documents."""
    names = ("digest", "records", "read", "end_offsets", "tentative", "stopped")
    fields = {name: result.answer[name] for name in names if name in result.answer}
    if asked.as_of is not None:
        fields["last_offsets"] = {str(number): cut.last_offset for number, cut in (result.cuts or {}).items()}
    return fields | dict(result.complete)


def log_line(asked: AuditOptions, result: AuditResult) -> None:
    """Print which log was read, and how."""
    answer = result.answer
    how = "in full, strictly" if answer["read"] == "full" else "as a joining broker does"
    line = f"read {how}; {answer['records']:,} records; end offsets {tables.ends(answer)}; digest {answer['digest']}"
    stdout().print(Text(line))
    if asked.as_of is not None and result.cuts is not None:
        for what, value in tables.MomentAndRest(asked.as_of, result.cuts).facts(answer):
            stdout().print(Text(f"{what}: {value}"))
    tables.completeness(result.complete)
    stdout().print()


def title_of(name: str, option: str = "") -> str:
    """Subject of a history.

    Args:
        option: Option that held the name.

    Raises:
        AuditQuestionError: The name is not a bundle, namespace or topic.
    """
    try:
        return History(name).title
    except ValueError as error:
        raise AuditQuestionError(
            f"{option}{error}.", hint="Use tenant/namespace/0x..._0x..., tenant/namespace/topic, or tenant/namespace."
        ) from error


def not_named(name: str) -> CommandError:
    """The error for a name that is not in the log."""
    return CommandError(
        f"the log has no record of {name}",
        hint="Check the name; `statechannel namespace list` lists the namespaces, `statechannel bundles` the live bundles.",
        code=ExitCode.NOT_FOUND,
    )
