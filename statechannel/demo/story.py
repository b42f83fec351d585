"""Story of the demo, step by step."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from statechannel.demo.chapters import SERVED_S, Chapters, spread, topic_names, until_settled
from statechannel.demo.client import now_ms
from statechannel.demo.cluster import DemoBroker, DemoError
from statechannel.demo.narrator import milliseconds
from statechannel.demo.plane import place_of_bundle, place_of_topic
from statechannel.protocol.bundle import range_name

NAMESPACE = "public/default"
BUNDLES = 16
BROKERS = ("b1", "b2", "b3")


@dataclass(slots=True)
class Story(Chapters):
    """One run of the demo.

    Attributes:
        used: Bundles that a step has already used.
    """

    EXAMPLES: ClassVar[Sequence[str]] = (
        "status",
        "bundles",
        "lookup {topic}",
        "transfer {topic} --dest b2",
        "why {topic}",
        "decisions --since 15m",
        "drain b2",
        "uncordon b2",
        "watch",
        f"audit history {NAMESPACE}",
    )

    # One in each half of a bundle, so that the children of a split have topics, too.
    topics: list[str] = field(default_factory=lambda: topic_names(NAMESPACE, 2 * BUNDLES))
    used: set[str] = field(default_factory=set)

    def run(self) -> None:
        """Run the whole story, up to the audit; raises `DemoError` if it cannot continue."""
        self.start_kafka()
        self._start_brokers()
        self._create_namespace()
        self._start_client()
        self._transfer()
        self._split()
        killed = self._kill()
        self._start_again(killed)
        self._drain(killed)
        self._balance()
        self._audit()

    # --- steps ------------------------------------------------------------------------------------------------------

    def _start_brokers(self) -> None:
        n = self.narrator
        n.step("Three brokers, each a separate process")
        n.say("They store nothing; each has a port that accepts writes only for the bundles that it serves.")
        self.start_brokers(BROKERS)
        n.say("They balance load automatically; for now an override keeps the balancer from moving bundles:")
        self.command("override", "shedding", "off", "--for", "1h", "--reason", "the steps before")

    def _create_namespace(self) -> None:
        n = self.narrator
        n.step(f"A namespace of {BUNDLES} bundles")
        n.say("One record creates it with all its bundles. Each is unassigned until its first lookup.")
        self.command("namespace", "create", NAMESPACE, "--bundles", str(BUNDLES))
        n.good(f"{NAMESPACE} has {BUNDLES} bundles")

    def _start_client(self) -> None:
        n = self.narrator
        n.step(f"A client writes to {len(self.topics)} topics, four times a second each")
        n.say("It asks any broker for the owner of a topic, and writes there. The first lookup of a bundle assigns it.")
        self.start_client()
        self.show("brokers", "broker", "leader", "bundles", "URLs")

    def _transfer(self) -> None:
        n = self.narrator
        n.step("A transfer")
        topic, owner = self._topic_of_somebody()
        to = next(broker for broker in BROKERS if broker != owner)
        n.say(
            f"{owner} serves the bundle of {topic}; it is moved to {to}. The destination is set before the source releases it."
        )
        self.command("transfer", topic, "--dest", to)
        self.until_served()
        location = self.command("lookup", topic)
        self.promises.check(
            location["broker"] == to,
            f"{topic} is served by {location['broker']} at generation {location['generation']}",
        )

    def _split(self) -> None:
        n = self.narrator
        n.step("A split")
        topic, owner = self._topic_of_somebody()
        n.say("One record replaces a bundle by its halves; the owner keeps serving, without a gap.")
        noticed = len(self.writer.gaps())
        self.command("split", topic)
        self.until_served()
        live = self.cluster.ask("bundles", "--namespace", NAMESPACE)["bundles"]
        self.promises.check(len(live) == BUNDLES + 1, f"the namespace has {len(live)} bundles, still served by {owner}")
        self.promises.check(len(self.writer.gaps()) == noticed, "the client noticed no gap")

    def _kill(self) -> DemoBroker:
        n = self.narrator
        n.step("kill -9 of one broker, the leader")
        leader = self.cluster.ask("brokers")["leader"]
        killed = self.cluster.brokers.get(leader or "")
        if killed is None:
            raise DemoError(f"no broker of the demo is leader (leader: {leader})")
        orphans = sum(bundle["owner"] == killed.id for bundle in self.bundles())
        n.command(f"kill -9 {killed.pid}")
        self.cluster.kill_broker(killed)
        n.say(
            f"{killed.id} is gone, and {orphans} bundles are unserved. The others detect the loss by its missing "
            "heartbeats after 6 s, elect a leader, and the leader assigns the bundles to new owners."
        )
        took_s = self.until_served(lost=killed.id)
        n.good(f"every topic is served again {took_s:.1f} s after the kill")
        self.show("brokers", "broker", "state", "leader", "bundles")
        return killed

    def _start_again(self, killed: DemoBroker) -> None:
        n = self.narrator
        n.step(f"{killed.id} comes back")
        n.say("A new process under the old id reads the log like any new broker; it owns nothing at first.")
        n.command(f"{self.name} {' '.join(self.cluster.broker_command(killed.id))} &")
        again = self.cluster.start_broker(killed.id)
        self.cluster.wait_ready(again)
        self.writer.add_broker(again.url)
        n.good(f"{again.id} has caught up, pid {again.pid}")

    def _drain(self, killed: DemoBroker) -> None:
        n = self.narrator
        leaving = next(broker for broker in self.cluster.living() if broker.id != killed.id)
        n.step(f"{leaving.id} is restarted gracefully")
        serving = sum(bundle["owner"] == leaving.id for bundle in self.bundles())
        n.say(f"On SIGTERM it hands over its {serving} bundles, resigns, sends a goodbye and ends.")
        n.command(f"kill {leaving.pid}")
        begun_s = time.monotonic()
        code = self.cluster.drain_broker(leaving, SERVED_S)
        took_s = time.monotonic() - begun_s
        self.promises.check(code == 0, f"{leaving.id} ended after {took_s:.1f} s with exit code {code}")
        left = sum(bundle["owner"] == leaving.id for bundle in self.bundles())
        self.promises.check(left == 0, f"it left {left} bundles behind")
        again = self.cluster.start_broker(leaving.id)
        self.cluster.wait_ready(again)
        self.writer.add_broker(again.url)
        self.until_served()
        n.good(f"{again.id} is back, pid {again.pid}, and every topic is served")
        self.show("brokers", "broker", "state", "leader", "bundles")

    def _balance(self) -> None:
        n = self.narrator
        n.step("The cluster balances itself")
        n.say(
            "Brokers report their load, and the leader moves bundles from the busiest to the idlest. Load is simulated here: a "
            "few topics are heavy, and nothing has been balanced since the restarts."
        )
        begun_ms = now_ms()
        self.command("override", "end", "shedding")
        balanced = until_settled(self.cluster, begun_ms, len(BROKERS))
        n.command(f"{self.name} decisions --moves-only")
        n.say("prints, in short:")
        moves = list(balanced.moves)
        self.show_moves([move for _, move in moves], _short)
        did = f"{_count(len(moves), 'move')} in {_count(len(balanced.decisions), 'decision')}"
        self.promises.all(balanced.unsettled, f"{did}, all done")
        n.table(
            ("load of", *sorted(balanced.before), "apart"),
            [
                (name, *(f"{scores[broker]:.2f}" for broker in sorted(balanced.before)), f"{spread(scores):.2f}")
                for name, scores in (("before", balanced.before), ("after", balanced.after))
            ],
        )
        self.promises.check(
            spread(balanced.after) < spread(balanced.before),
            "the brokers are closer together, and nothing moves any more",
        )
        self.until_served()
        n.say("Why is that bundle there? The log and the decisions know:")
        self.print("why", moves[-1][1]["bundle"])

    def _audit(self) -> None:
        n = self.narrator
        n.step("The audit: what happened, by the log?")
        n.say("It reads the same topic as the brokers, with the same rules, and lists every gap with its cause.")
        until_ms = now_ms()
        self.writer.stop()
        answer = self.command("audit", "gaps")
        compared = self.promises.gaps(
            answer, self.writer, topics=self.topics, since_ms=self.all_written_ms, until_ms=until_ms
        )
        n.table(
            ("bundle", "cause", "from", "to", "by the log", "noticed", "why"),
            [
                (
                    _short(pair.audited.bundle),
                    pair.audited.cause,
                    pair.audited.before or "-",
                    pair.audited.after or "-",
                    milliseconds(None if pair.audited.end_ms is None else pair.audited.end_ms - pair.audited.start_ms),
                    milliseconds(None if pair.noticed is None else pair.noticed.length_ms),
                    pair.audited.why,
                )
                for pair in compared.pairs
            ],
        )
        n.say("(`by the log`: a lost owner's gap begins when it was last heard, up to a second before it was killed.)")
        self.check_owners()
        self.check_digests()

    # --- parts of steps ---------------------------------------------------------------------------------------------

    def _topic_of_somebody(self) -> tuple[str, str]:
        """A topic and its owner, of the unused bundle with the highest range, so that each step has another."""
        for bundle in self.bundles():
            place = place_of_bundle(bundle["bundle"])
            topic = next((name for name in self.topics if place.holds(*place_of_topic(name))), None)
            if topic is not None and bundle["owner"] is not None and bundle["bundle"] not in self.used:
                self.used.add(bundle["bundle"])
                return topic, bundle["owner"]
        raise DemoError("no bundle has an owner")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _short(bundle: str) -> str:
    place = place_of_bundle(bundle)
    return range_name(place.lower, place.upper)
