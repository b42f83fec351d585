"""The commands of scenario files."""

import shlex
from collections.abc import Callable
from typing import Any

import orjson

from statechannel.audit.gaps import Gaps
from statechannel.audit.moments import parse_as_of
from statechannel.engine.commands import (
    AwaitOperation,
    CreateNamespace,
    DeleteNamespace,
    Lookup,
    PreStop,
    ResumeRepair,
    Shutdown,
    Split,
    Transfer,
    UndoPreStop,
    Unload,
)
from statechannel.engine.config import EngineConfig
from statechannel.engine.effects import Hook
from statechannel.engine.inputs import PartitionBroken
from statechannel.protocol.bundle import namespace_bounds
from statechannel.protocol.log import RecordRead, Topic
from statechannel.replay.auditor import audit
from tests.scenarios import wording
from tests.scenarios.world import World

Options = dict[str, str]
Handler = Callable[..., None]
_RAW = {"junk", "propose"}


class Script:
    """Runs commands against one world. Every public method named `do_...` is a command; its docstring is its manual."""

    def __init__(self) -> None:
        self.world = World()
        self._strangers = 0
        self._at_once = False

    def run(self, commands: list[str]) -> list[str]:
        """Give the commands; what happened."""
        self.world.lines = []
        self._at_once = False
        for line in commands:
            self._one(line)
            if not self._at_once:
                self.world.settle()
        self.world.settle()
        return self.world.lines

    def _one(self, line: str) -> None:
        verb, _, rest = line.strip().partition(" ")
        handler: Handler | None = getattr(self, "do_" + verb.replace("-", "_"), None)
        if handler is None:
            raise ValueError(f"no such command: {line}")
        if verb in _RAW:
            key, _, value = rest.partition(" ")
            handler(key, value)
            return
        words = shlex.split(rest)
        named = dict(word.split("=", 1) for word in words if "=" in word)
        handler(*[word for word in words if "=" not in word], **named)

    # --- time, processes --------------------------------------------------------------------------------------------

    def do_run(self, duration_s: str) -> None:
        """`run SECONDS`: let time pass."""
        self.world.settle()
        self.world.run(float(duration_s))

    def do_at_once(self) -> None:
        """`at-once`: the following commands of the block are given before anything arrives."""
        self._at_once = True

    def do_set(self, **settings: str) -> None:
        """`set NAME=VALUE ...`: settings of the brokers started from here on, or of the world."""
        for name, value in settings.items():
            if name in ("session_timeout_s", "delivery_timeout_s"):
                setattr(self.world, name, float(value))
            else:
                self.world.settings[name] = orjson.loads(value)

    def do_start(self, *names: str, **settings: str) -> None:
        """`start BROKER... [take-over] [NAME=VALUE ...]`: new processes."""
        for name in names:
            if name != "take-over":
                more: dict[str, Any] = {option: orjson.loads(value) for option, value in settings.items()}
                if "take-over" in names:
                    more["take_over"] = True
                self.world.start(name, **more)

    def do_cluster(self, *names: str) -> None:
        """`cluster BROKER...`: start them and wait until they have heard each other for long enough; told in one line."""
        for name in names:
            self.world.start(name)
        self.do_run("4")
        self.world.lines = []
        leader = next((one.name for one in self.world.processes if one.engine.leading), "nobody")
        self.world.say(f"= {' '.join(names)} are up, {leader} leads")

    def do_kill(self, *names: str) -> None:
        """`kill BROKER...`: as by SIGKILL."""
        for name in names:
            self.world.process(name).alive = False

    def do_pause(self, *names: str) -> None:
        """`pause BROKER...`: as by SIGSTOP."""
        for name in names:
            self.world.process(name).paused = True

    def do_resume(self, *names: str) -> None:
        """`resume BROKER...`: as by SIGCONT."""
        for name in names:
            self.world.process(name).paused = False

    def do_cut(self, *names: str) -> None:
        """`cut BROKER...`: the log is out of its reach."""
        for name in names:
            self.world.process(name).cut = True

    def do_heal(self, *names: str) -> None:
        """`heal BROKER...`: it reaches the log again."""
        for name in names:
            self.world.process(name).heal()

    def do_hold(self, name: str) -> None:
        """`hold BROKER`: what it writes to the channel stays in the network."""
        self.world.process(name).held = []

    def do_let_through(self, name: str) -> None:
        """`let-through BROKER`: what was held reaches the log."""
        self.world.process(name).let_through()

    def do_next_append(self, name: str, fate: str) -> None:
        """`next-append BROKER lost|blurred`: its next proposal or assert is not written, or is but nobody tells."""
        self.world.process(name).next_append = fate

    def do_hook(self, name: str, hook: str, *fates: str) -> None:
        """`hook BROKER on_own|on_release fails|hangs|returns... [always]`: how its next calls end."""
        self.world.process(name).hooks[Hook(hook)] = list(fates)

    def do_finish(self, name: str) -> None:
        """`finish BROKER`: its hanging hooks return."""
        self.world.process(name).finish_hooks()

    def do_elect(self, name: str) -> None:
        """`elect BROKER`: a rebalance gives it the leader's seat."""
        self.world.election.seat(self.world.process(name))

    def do_no_election(self) -> None:
        """`no-election`: the group coordinator is away; the leader hears nothing of it, and nobody follows it."""
        self.world.election.closed = True

    def do_broken(self, name: str, detail: str) -> None:
        """`broken BROKER DETAIL`: its client finds another topic than it opened."""
        self.world.process(name).step(PartitionBroken(Topic.CHANNEL, 0, detail))

    # --- callers ----------------------------------------------------------------------------------------------------

    def do_create(self, at: str, namespace: str, bundles: str = "1", op: str = "create", timeout: str = "5") -> None:
        """`create BROKER NAMESPACE [bundles=N] [op=ID] [timeout=S]`."""
        command = CreateNamespace(namespace, tuple(namespace_bounds(int(bundles))), op, float(timeout))
        self.world.ask(at, command, f"create {namespace}")

    def do_delete(self, at: str, namespace: str, op: str = "delete", timeout: str = "5") -> None:
        """`delete BROKER NAMESPACE [op=ID] [timeout=S]`."""
        self.world.ask(at, DeleteNamespace(namespace, op, float(timeout)), f"delete {namespace}")

    def do_lookup(self, at: str, name: str, *flags: str, timeout: str = "5") -> None:
        """`lookup BROKER TOPIC|BUNDLE [read-only] [timeout=S]`."""
        command = Lookup(name, float(timeout), read_only="read-only" in flags)
        self.world.ask(at, command, f"lookup {name}")

    def do_transfer(self, at: str, name: str, destination: str, op: str = "move", timeout: str = "5") -> None:
        """`transfer BROKER TOPIC|BUNDLE DESTINATION [op=ID] [timeout=S]`."""
        self.world.ask(at, Transfer(name, destination, op, float(timeout)), f"transfer {op}")

    def do_unload(self, at: str, name: str, op: str = "unload", timeout: str = "5") -> None:
        """`unload BROKER TOPIC|BUNDLE [op=ID] [timeout=S]`."""
        self.world.ask(at, Unload(name, op, float(timeout)), f"unload {op}")

    def do_split(
        self, at: str, name: str, op: str = "split", timeout: str = "5", parts: str = "2", at_hashes: str = ""
    ) -> None:
        """`split BROKER TOPIC|BUNDLE [parts=N] [at_hashes=0x..,0x..] [op=ID] [timeout=S]`."""
        cuts = tuple(int(cut, 16) for cut in at_hashes.split(",") if cut)
        self.world.ask(at, Split(name, op, float(timeout), at=cuts, parts=int(parts)), f"split {op}")

    def do_await(self, at: str, op: str, timeout: str = "5") -> None:
        """`await BROKER OPERATION [timeout=S]`."""
        self.world.ask(at, AwaitOperation(op, float(timeout)), f"await {op}")

    def do_resume_repair(self, at: str) -> None:
        """`resume-repair BROKER`."""
        self.world.ask(at, ResumeRepair(), "resume-repair")

    def do_shutdown(self, at: str, budget: str = "10") -> None:
        """`shutdown BROKER [budget=S]`."""
        self.world.ask(at, Shutdown(float(budget)), "shutdown")

    def do_pre_stop(self, at: str, budget: str = "10", notice: str = "0") -> None:
        """`pre-stop BROKER [budget=S] [notice=S]`."""
        self.world.ask(at, PreStop(float(budget), float(notice)), "pre-stop")

    def do_undo_pre_stop(self, at: str) -> None:
        """`undo-pre-stop BROKER`."""
        self.world.ask(at, UndoPreStop(), "undo-pre-stop")

    # --- the log ----------------------------------------------------------------------------------------------------

    def do_junk(self, key: str, value: str) -> None:
        """`junk KEY VALUE`: somebody writes these bytes."""
        self.world.append(Topic.CHANNEL, self.world.partition_of(key), key.encode(), value.encode())

    def do_null(self, key: str) -> None:
        """`null KEY`: somebody writes a null."""
        self.world.append(Topic.CHANNEL, self.world.partition_of(key), key.encode(), None)

    def do_propose(self, key: str, fields: str) -> None:
        """`propose KEY {FIELDS}`: a stranger's record; what is left out fits the accepted state."""
        self._strangers += 1
        given = orjson.loads(fields)
        partition = self.world.partition_of(key)
        view = self.world.archive[partition]
        accepted = view.get(key)
        record: dict[str, Any] = {
            "format": 1,
            "kind": "proposal",
            "id": f"stranger-{self._strangers}",
            "covers": view.applied,
            "by": {"broker": "x", "incarnation": "x-1"},
            "version": 1 if accepted is None else accepted.version + 1,
            "base": None if accepted is None else accepted.accepted_id,
        }
        written_to = given.pop("@partition", partition)
        record |= given
        if record["kind"] == "assert":
            record["asserts"] = record.pop("base")
        self.world.append(Topic.CHANNEL, written_to, key.encode(), orjson.dumps(record))

    def do_repeat(self, offset: str) -> None:
        """`repeat OFFSET`: the record arrives once more."""
        entry = self.world.logs[Topic.CHANNEL, 0].entries[int(offset)]
        if entry is None:
            raise ValueError(f"offset {offset} was cleaned")
        self.world.append(Topic.CHANNEL, 0, entry.key, entry.value)

    def do_compact(self, through: str) -> None:
        """`compact OFFSET`: the cleaner works on everything up to this offset, which must be older than the lag."""
        lag_s = self.world.settings.get("compaction_lag_s", EngineConfig().compaction_lag_s)
        taken = self.world.logs[Topic.CHANNEL, 0].entries[: int(through) + 1]
        newest_ms = max(entry.timestamp_ms for entry in taken if entry is not None)
        if self.world.now_ms - newest_ms < lag_s * 1000:
            raise ValueError(f"offset {through} is younger than the compaction lag of {lag_s} s")
        gone = self.world.logs[Topic.CHANNEL, 0].clean(int(through))
        self.world.say(f"cleaned: {len(gone)} of the offsets 0 to {through}")

    # --- what is shown ----------------------------------------------------------------------------------------------

    def do_heartbeats(self, wish: str) -> None:
        """`heartbeats shown|hidden`."""
        self.world.show_heartbeats = wish == "shown"

    def do_state(self) -> None:
        """`state`: every accepted state, as a reader of the whole log has it."""
        self.world.settle()
        for view in self.world.archive:
            for key in sorted(view.existing(), key=lambda one: one.name):
                self.world.say("= " + wording.state_line(key))

    def do_serving(self) -> None:
        """`serving`: what each living process serves."""
        self.world.settle()
        for process in self.world.processes:
            if process.alive:
                held = sorted(process.engine.serving().items())
                told = ", ".join(f"{bundle} generation {generation}" for bundle, generation in held)
                self.world.say(f"= {process.name} serves {told or 'nothing'}")

    def do_show(self, name: str) -> None:
        """`show BROKER`: how it stands."""
        self.world.settle()
        engine = self.world.process(name).engine
        phases = ", ".join(f"{one.phase} at {one.applied}" for one in engine.replicas)
        debts = sorted(key.name for one in engine.replicas for key in one.view.ledger.open)
        members = " ".join(sorted(engine.presence.members.alive)) or "nobody"
        flags = (" leading" if engine.leading else "") + (" draining" if engine.draining else "")
        self.world.say(f"= {name} {engine.mode}{flags}, {phases}, hears {members}, debts: {' '.join(debts) or 'none'}")

    def do_audit(self, as_of: str = "") -> None:
        """`audit [as_of=OFFSET]`: what the audit says of what is left of the log, and the gaps in service that it finds."""
        self.world.settle()
        logs = [log for (topic, _), log in self.world.logs.items() if topic is Topic.CHANNEL]
        rows = {
            log.partition: [
                RecordRead(log.topic, log.partition, offset, *entry)
                for offset, entry in enumerate(log.entries)
                if entry
            ]
            for log in logs
        }
        gaps = Gaps()
        lag_s = self.world.settings.get("compaction_lag_s", EngineConfig().compaction_lag_s)
        answer = audit(
            rows,
            end_offsets={log.partition: len(log.entries) for log in logs},
            read="auto",
            now_ms=self.world.now_ms,
            compaction_lag_ms=round(lag_s * 1000),
            as_of=parse_as_of(as_of) if as_of else None,
            observe=gaps.observe,
            join_observer=gaps,
        )
        self.world.say("= " + wording.audit_line(answer))
        for gap in gaps.all():
            self.world.say("= " + wording.gap_line(gap))
