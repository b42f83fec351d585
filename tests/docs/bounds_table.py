"""What waits or is kept in a broker, its bound, and what happens beyond it: the table of design/reference/bounds.md."""

from typing import NamedTuple

from statechannel.protocol.view import WRITERS_MAX
from statechannel.settings.tree import groups


class Bounded(NamedTuple):
    """One queue, wait or table; `settings` are its bounds, as `group.name`, and `fixed` is one that nobody has to set."""

    what: str
    settings: tuple[str, ...]
    beyond: str
    caller: str
    fixed: str = ""


BOUNDED = (
    Bounded(
        "inputs from Kafka that wait for the loop, in each of its lanes (the registry; calls; reports; all else)",
        ("limits.inbox_max", "limits.inbox_max_mib"),
        "the lane's reader waits, and fetches no more than `kafka.fetch_queue_kib`",
        "the lag grows (`status`, `statechannel_view_lag_seconds`), and answers say how old they are",
    ),
    Bounded(
        "commands and lookups that wait for an answer",
        ("runtime.commands_max",),
        "refused at once",
        "`ChannelStoppedError` with the reason `busy`; through the requests topic `rejected busy`",
    ),
    Bounded(
        "lookups that wait for a bundle",
        ("lookups.waiting_max", "lookups.timeout_s"),
        "answered at once; after their time too",
        "`undetermined busy`, `undetermined timed-out`: try again",
    ),
    Bounded(
        "names with a cached owner",
        ("lookups.cached_max",),
        "all are dropped, and looked up again",
        "lookups take a few microseconds longer",
    ),
    Bounded(
        "own records on their way",
        ("limits.pending_max",),
        "lookups wait for room; operations are refused; reactions try again after `limits.retry_interval_s`",
        "`rejected busy`, with the name of the setting: try again",
    ),
    Bounded(
        "an append without its read-back",
        ("limits.unknown_limit_s",),
        "its end is called unknown",
        "`unknown`: ask for the operation again later",
    ),
    Bounded(
        "operations whose end is remembered",
        ("limits.operations_max",),
        "the oldest is forgotten",
        "`not-found`; the log still has it (`history`)",
    ),
    Bounded(
        "parts of one split",
        ("limits.split_parts_max",),
        "refused; a foreign wish for more is given up",
        "`rejected bad-split`: split the parts again",
    ),
    Bounded(
        "records that a joining reader keeps aside",
        ("limits.kept_records_max", "limits.kept_max_mib"),
        "the join starts over",
        "lookups say `undetermined joining`; at last `JoinTimeoutError` (`runtime.join_timeout_s`)",
    ),
    Bounded(
        "requests without a reply",
        ("requests.open_max", "requests.open_max_mib"),
        "the leader refuses, nobody keeps it",
        "`rejected busy`: try again later",
    ),
    Bounded("requests that have ended", ("requests.remembered_max",), "the oldest id is forgotten", "nothing"),
    Bounded(
        "requests that extensions answer at once", ("requests.extension_requests_max",), "refused", "`rejected busy`"
    ),
    Bounded(
        "changes that a subscriber does not take",
        ("runtime.changes_max_mib",),
        "beside the number that it asked for (`limit`): its stream ends, the others go on",
        "`ChangesError` with the offset to go on from",
    ),
    Bounded(
        "debts paid at once",
        ("leader.debt_batch_max",),
        "the others at the next tick, 0.2 s later; while a join waits after 50 ms",
        "a join takes longer (`statechannel_oldest_debt_seconds`)",
    ),
    Bounded(
        "repairs at once",
        ("repair.batch_max",),
        "the others when half of them are read back",
        "lookups of these bundles wait",
    ),
    Bounded(
        "hand-overs of a shutdown at once",
        ("hooks.handover_window", "hooks.shutdown_budget_s", "hooks.shutdown_bundle_s"),
        "the others when half of them have ended; what is left after the budget is repaired by the leader",
        "`rejected shutdown-late`",
    ),
    Bounded("a hook", ("hooks.deadline_s",), "it counts as failed", "the bundle goes elsewhere, or back"),
    Bounded(
        "hooks in threads at once",
        ("hooks.threads_max",),
        "the others wait for a thread, at the longest to their deadlines; a release goes on waiting",
        "metric `hooks_late`; with all kept `/readyz` fails",
    ),
    Bounded(
        "brokers that are heard",
        ("limits.members_max", "limits.members_max_mib"),
        "a newcomer is not taken in; until an expiry after the last one nobody is called absent, nothing is repaired for that "
        "reason, and no newer format is chosen",
        "event `registry.full`; the newcomer gets no bundles",
    ),
    Bounded("brokers that left or were lost", ("limits.remembered_max",), "the oldest is forgotten", "nothing"),
    Bounded(
        "connections to the admin API, and requests of an address",
        ("http.connections_max", "http.requests_per_s"),
        "one more is closed; refused",
        "a closed connection; `too-many-requests` (429) with Retry-After",
    ),
    Bounded(
        "what a client of the admin API sends or takes slowly",
        ("http.body_max_bytes", "http.receive_timeout_s"),
        "refused; the connection is closed",
        "`body-too-large` (413), `receive-timeout` (408), or a closed connection",
    ),
    Bounded(
        "requests of the admin API that change something; answers of it that are read from topics",
        ("http.actions_max", "http.topic_reads_max", "http.answer_timeout_s", "http.wait_max_s"),
        "refused at once; after their time too",
        "`too-busy` (503), `answer-late` (504); an action that was begun is polled",
    ),
    Bounded(
        "records of the log that an audit question over HTTP reads",
        ("http.audit_records_max", "http.audit_read_s"),
        "the answer is from what was read",
        "`log` of the answer: `complete` is false, `stopped_at` has the first offset left out of each partition",
    ),
    Bounded(
        "readers of the admin API's changes, and changes kept for them",
        ("http.readers_max", "http.catch_ups_max", "http.changes_max", "http.changes_max_mib"),
        "refused; one that is further behind is cut off, the others go on",
        "`too-busy` (503); the event `cut-off` with the position to resume from",
    ),
    Bounded(
        "processes that wrote accepted records",
        (),
        "the oldest is forgotten: the table only lets keys share one object for each, and no verdict looks at it",
        "nothing",
        f"{WRITERS_MAX:,} in each partition",
    ),
)


def rows() -> list[tuple[str, str, str, str]]:
    """The table's rows, with the defaults of the settings."""
    found = groups()
    shown = []
    for one in BOUNDED:
        bounds = [one.fixed] if one.fixed else []
        for path in one.settings:
            group, _, name = path.partition(".")
            default = found[group].model_fields[name].default
            bounds.append(f"`{path}` = {default:g}" if isinstance(default, float) else f"`{path}` = {default:,}")
        shown.append((one.what, "<br>".join(bounds), one.beyond, one.caller))
    return shown
