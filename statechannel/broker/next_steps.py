"""Next step for each reason of a refusal or an undetermined answer: hints of commands, of the API, and of reference/api.md.

Keyed by the stable words of the outcomes; `tests/unit/runtime/test_next_steps.py` finds every such word in the code.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from statechannel.broker.exits import HINTS
from statechannel.engine.commands import NotFound, Rejected, Undetermined
from statechannel.engine.kafka_limits import LIMIT_HINTS, RefusalReason
from statechannel.protocol.bundle import is_bundle, is_namespace, split_topic

if TYPE_CHECKING:
    from statechannel.engine.commands import Command, Outcome

_AGAIN = "Try again in a moment"
_RACE = f"`statechannel audit history {{name}}` shows what was first. {_AGAIN}."
_DAMAGE = "`statechannel audit history {name}` shows the records. It should not happen: report it."
_WHO = "`statechannel brokers` lists them with their states"
REJECTED: dict[str, str] = {
    # The request itself.
    "bad-request": f"The broker may be older than this command: {_WHO}.",
    "bad-name": "Use tenant/namespace; both are 1 to 128 of A-Za-z0-9_=:.-",
    "bad-split": "`statechannel positions {bundle}` shows the topics' positions, and where the bundle could be split.",
    "bound-namespace": "It is served by that broker alone and needs no creation: `statechannel lookup {namespace}/TOPIC`.",
    "namespace-exists": "`statechannel namespace show {namespace}` shows it.",
    "being-deleted": "`statechannel operation list` shows the deletion.",
    "not-unloaded": "`statechannel bundles --namespace {namespace}` shows what is left; delete again, with a longer --timeout.",
    # The bundle's state.
    "not-assigned": f"While it is in flight: {_AGAIN.lower()}; `statechannel status` shows that. Where no broker owns it, a "
    "lookup assigns it: `statechannel lookup {name}`, in code `StateChannel.lookup`.",
    "not-serving-yet": f"{_AGAIN}: its owner has just restarted.",
    "generation-changed": "`statechannel audit history {name}` shows what was first. Look at it, and decide again.",
    "superseded": "Begin it again if it is still wanted. `statechannel audit history {name}` shows the changes in between.",
    "declined": "`statechannel operation show {operation}` shows which broker declined; the next lookup chooses another one.",
    "taken-back": "`statechannel operation show {operation}` shows why; the previous owner serves it.",
    "given-up": "`statechannel operation show {operation}` shows why; the bundle is served, unsplit.",
    # The destination.
    "destination-is-owner": f"Choose another broker: {_WHO}. To release it: `statechannel unload {{name}}`.",
    "destination-lost": f"Choose a live broker: {_WHO}.",
    "unknown-destination": f"Choose a live broker: {_WHO}.",
    "destination-not-accepting": f"Try again when it takes bundles, or choose another one: {_WHO}.",
    # The broker that was asked.
    "busy": f"{_AGAIN}; `statechannel status` shows what is in flight.",
    "joining": f"{_AGAIN}: {_WHO}.",
    "starting-mode": f"{_AGAIN}: {_WHO}.",
    "safe-mode": f"{_AGAIN}: the broker lost its connection to Kafka. {_WHO}.",
    "settling-mode": f"{_AGAIN}: the broker lost its connection to Kafka, and waits for heartbeats of the others.",
    "read-only": "This process only reads the channel: ask a broker. `statechannel brokers` lists them.",
    "draining": f"{_AGAIN}: another broker takes over. {_WHO}.",
    "shutting-down": "Start it again once it has ended. `statechannel brokers` lists those that are alive.",
    "not-written": f"{_AGAIN}; if it persists, see the broker's log and `statechannel status`.",
    "record-too-large": "To try again does not help. Ask for less at once (fewer bundles, fewer parts), or "
    + LIMIT_HINTS[RefusalReason.TOO_LARGE],
    "write-denied": f"To try again does not help. {LIMIT_HINTS[RefusalReason.DENIED]}",
    "record-refused": f"To try again does not help. {LIMIT_HINTS[RefusalReason.INVALID]}",
    "log-away": "`statechannel bundles` shows what it still owns: the leader repairs that once the broker has expired.",
    "shutdown-late": "`statechannel bundles` shows what it still owns: the leader repairs that.",
    "internal-error": "This is a bug: the broker's log has the error with the operation {operation}. Report it.",
    # A broker that is dismissed.
    "broker-alive": f"{_WHO}; `statechannel drain` empties one before it is stopped.",
    "broker-not-lost": f"Check the name: {_WHO}.",
    # Verdicts on the first record of the operation.
    "unsupported-format": "Run brokers of the newer version; `statechannel status` shows where the log stopped.",
    "wrong-partition": _DAMAGE,
    "undecodable": _DAMAGE,
    "unknown-bundle": "`statechannel bundles --namespace {namespace}` lists the current ones.",
    "stale-version": _RACE,
    "version-gap": _RACE,
    "wrong-base": _RACE,
    "illegal-move": _RACE,
    "wrong-broker": _RACE,
    "bad-children": _DAMAGE,
    "namespace-in-use": f"A lookup assigned a bundle in the meantime. {_AGAIN}.",
    # Extensions, and the balancer among them.
    "no-extension": "`statechannel broker run` runs those that are installed, unless extensions.NAME.enabled is false; a program "
    "that embeds the channel passes them to StateChannel.open. `statechannel brokers -o wide` lists those of each broker.",
    "unknown-ask": f"The broker may be older than this command: {_WHO}.",
    "not-leader": f"{_AGAIN}: another broker leads now. {_WHO}.",
    "policies-unread": f"{_AGAIN}: the broker has not read the policies yet.",
    "unknown-algorithm": "`statechannel strategy list` shows those that are installed here; the owner's may differ.",
    "bad-settings": "`statechannel strategy show` lists the settings of a strategy with their bounds.",
    "strategy-failed": "Choose another strategy; the broker's log has the error with the operation {operation}.",
    "nothing-to-cut": "`statechannel positions {bundle}` shows the topics' positions; --at or --parts split it all the same.",
    "splitting-off": "Its balancer does not split (extensions.balancer.splitting is off); `statechannel split` still works.",
    "filtered": "Change the policy that is named, or use --force; the record's reason will mention it.",
    "unknown-broker": f"Choose another one: {_WHO}.",
    "no-destination": "Change the policies, start another broker, or use --force.",
    "uncordoned": "Drain it again if that was a mistake: `statechannel drain`.",
    "not-cordoned": "`statechannel drain` cordons a broker and empties it.",
}
UNDETERMINED: dict[str, str] = {
    "tentative": "Ask a broker: run the command without --read-only.",
    "in-flight": f"{_AGAIN}; `statechannel status` shows what is in flight, and for how long.",
    "no-broker": "Start a broker. `statechannel brokers` lists those that are heard.",
    "owner-not-heard": f"{_AGAIN}: the leader reassigns its bundles; `statechannel status` says what keeps it from that. {_WHO}.",
    "joining": f"{_AGAIN}: {_WHO}.",
    "declined": "Mend the cause at that broker, or start another one; `statechannel why {name}` shows what happened.",
    "no-broker-allowed": "Change the policy or end the cordon that is named: `statechannel policy list`, `statechannel policy "
    "delete KIND NAME`, `statechannel uncordon BROKER`; or start a broker that they allow.",
    "timed-out": "`statechannel status` shows what is in flight; to wait longer: --timeout SECONDS.",
    **LIMIT_HINTS,
    "record-too-large": f"First {LIMIT_HINTS[RefusalReason.TOO_LARGE]}",
    "busy": f"{_AGAIN}, or raise lookups.waiting_max on the brokers.",
    "running": "It may still succeed: `statechannel operation show {operation}`.",
    "stopped": f"{_AGAIN}: another broker answers. {_WHO}.",
    "forked": HINTS["forked"],
}
NOT_FOUND: dict[str, str] = {
    "unknown-namespace": "`statechannel namespace create {namespace}` creates it; `statechannel namespace list` lists them.",
    "unknown-bundle": "`statechannel bundles --namespace {namespace}` lists them.",
    "split-bundle": "`statechannel bundles --namespace {namespace}` lists its children.",
    "being-deleted": "`statechannel operation list` shows the deletion.",
    "bad-name": "Use tenant/namespace/topic or tenant/namespace/0xLLLLLLLL_0xUUUUUUUU, lower-case, eight digits each, as UTF-8; "
    "a topic whose name looks like bounds: persistent://tenant/namespace/topic.",
    "unknown-operation": "`statechannel operation list` shows the newest.",
}
_OF_ALL_ELSE = "`statechannel operation show {operation}` shows more."


def hint_for(outcome: Rejected | Undetermined | NotFound, *, name: str = "", operation: str = "") -> str:
    """The hint for an outcome other than success.

    Args:
        name: Topic, bundle or namespace of the request.
        operation: Id of the request; empty where none was written.
    """
    hints = NOT_FOUND if isinstance(outcome, NotFound) else REJECTED if isinstance(outcome, Rejected) else UNDETERMINED
    hint = hints.get(outcome.reason, "")
    if not hint:  # a newer broker's reason: its own hint, if it has any
        return outcome.hint or (_OF_ALL_ELSE if operation else "").replace("{operation}", operation)
    bundle = outcome.bundle if isinstance(outcome, Rejected) else None
    return hint.format(operation=operation, **_names(name, bundle))


def with_next_step(outcome: Outcome, command: Command) -> Outcome:
    """A refusal, or an undetermined answer, with the next step of its reason, unless it has a more special one."""
    if not isinstance(outcome, Rejected | Undetermined) or outcome.hint:
        return outcome
    name = getattr(command, "name", "") or getattr(command, "namespace", "")
    return replace(outcome, hint=hint_for(outcome, name=name, operation=getattr(command, "operation", "")))


def _names(name: str, bundle: str | None) -> dict[str, str]:
    """Values that a hint may contain, quoted for a shell."""
    bundle = bundle or (name if is_bundle(name) else "")
    topic = split_topic(name)
    namespace = name if is_namespace(name) else topic[0] if topic is not None else ""
    return {
        "name": shlex.quote(name) if name else bundle or "NAME",
        "bundle": bundle or "BUNDLE",
        "namespace": namespace or "TENANT/NAMESPACE",
    }
