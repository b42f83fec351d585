"""Story of `demo --balance`: a namespace suddenly becomes three times as busy, and the cluster balances itself."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from statechannel.demo.chapters import Chapters, spread, topic_names, until_settled
from statechannel.demo.client import now_ms
from statechannel.demo.cluster import LAUNCH_SETTINGS
from statechannel.demo.plane import place_of_bundle
from statechannel.demo.series import Sampler
from statechannel.protocol.bundle import range_name

LAUNCH = "public/launch"
NAMESPACES = (LAUNCH, "public/orders", "public/clicks")
BUNDLES = 16
"""Of each namespace."""
BROKERS = ("b1", "b2", "b3", "b4")
HOME = "b1"
"""All bundles of the launch are on this broker until it begins."""
FACTOR = 3
SPREAD_MAX = 0.15
"""Maximum final difference between the busiest and the idlest broker, as a fraction of a machine."""
STEADY_S = 10.0
"""Observation time after it has settled."""
_LATE_S = 2.0
_POLL_S = 0.2
_SHOWN = 6


@dataclass(slots=True)
class LaunchStory(Chapters):
    """One run of `demo --balance`.

    Attributes:
        folder: Folder of the plot.
        quiet_s: Time from the start of the brokers to the launch.
    """

    EXAMPLES: ClassVar[Sequence[str]] = (
        "status",
        "decisions --moves-only",
        "why {topic}",
        "why-not {topic}",
        "snapshot take > cluster.json",
        "shed plan --snapshot cluster.json",
        "watch",
    )

    folder: Path = Path()
    quiet_s: float = 45.0
    topics: list[str] = field(
        default_factory=lambda: [topic for namespace in NAMESPACES for topic in topic_names(namespace, BUNDLES)]
    )
    sampler: Sampler | None = None
    launch_ms: int = 0

    def run(self) -> None:
        """Run the whole story, up to the plot; raises `DemoError` if it cannot continue."""
        self.start_kafka()
        self._start_brokers()
        self._create_namespaces()
        self._start_client()
        self._quiet()
        self._launch()
        self._after()
        self._plot()

    def close(self) -> None:
        if self.sampler is not None:
            self.sampler.stop()
        super(LaunchStory, self).close()

    # --- steps ------------------------------------------------------------------------------------------------------

    def _start_brokers(self) -> None:
        n = self.narrator
        n.step(f"{len(BROKERS)} brokers with simulated load")
        n.say(
            "Each is a separate process, and reports its load. The load of its topics is simulated, a function of the "
            f"time that is the same for all brokers: in {self.quiet_s:.0f} s the topics of {LAUNCH} will have {FACTOR} times "
            "the load."
        )
        # The setting knows whole seconds, and the mark of the plot has to be where the load begins.
        from_s = round(now_ms() / 1_000 + self.quiet_s)
        self.launch_ms = from_s * 1_000
        settings = LAUNCH_SETTINGS.format(namespace=LAUNCH, factor=FACTOR, from_s=from_s)
        self.cluster.settings.write_text(settings)
        self.start_brokers(BROKERS)
        self.sampler = Sampler(self.cluster.living)
        self.sampler.start()

    def _create_namespaces(self) -> None:
        n = self.narrator
        n.step(f"{len(NAMESPACES)} namespaces of {BUNDLES} bundles")
        n.say(f"All of {LAUNCH} is pinned to {HOME}: so far it is as quiet as the others.")
        self.command("policy", "set", "pin", LAUNCH, HOME)
        for namespace in NAMESPACES:
            self.command("namespace", "create", namespace, "--bundles", str(BUNDLES))
        n.good(f"{len(NAMESPACES) * BUNDLES} bundles; each is unassigned until its first lookup")

    def _start_client(self) -> None:
        n = self.narrator
        n.step(f"A client writes to {len(self.topics)} topics, one in each bundle")
        n.say("The first lookup of a bundle assigns it: to the broker with the most room, by the load reports.")
        self.start_client()

    def _quiet(self) -> None:
        n = self.narrator
        n.step("Before the launch")
        self._wait_until(self.launch_ms - round(_LATE_S * 1_000))
        self.show("brokers", "broker", "leader", "bundles")
        self._show_loads({"before the launch": self._lately()})
        n.say(f"Now {LAUNCH} may go anywhere:")
        self.command("policy", "delete", "pin", LAUNCH)

    def _launch(self) -> None:
        n = self.narrator
        n.step(f"The launch: {LAUNCH} becomes {FACTOR} times as busy")
        self._wait_until(self.launch_ms)
        series = self._sampler.series
        series.mark("launch", self.launch_ms)
        n.say(
            f"All of it on {HOME}. The leader sees it in the next report, decides every other second, and moves "
            "bundles to brokers with room, a part of the load at a time."
        )
        balanced = until_settled(self.cluster, self.launch_ms, len(BROKERS), spread_max=SPREAD_MAX)
        settled_ms = now_ms()
        n.command(f"{self.name} decisions --moves-only")
        moves = [move for _, move in balanced.moves]
        n.say(f"lists {len(moves)} moves in {len(balanced.decisions)} decisions; the first are:")
        self.show_moves(moves[:_SHOWN], _short)
        self.promises.all(balanced.unsettled, f"{len(moves)} moves in {len(balanced.decisions)} decisions, all done")
        seconds = (settled_ms - self.launch_ms) / 1_000
        n.good(f"after {seconds:.0f} s it has found nothing more to move three times in a row")
        n.say("Why is that bundle there? The log and the decisions know:")
        self.print("why", moves[-1]["bundle"])

    def _after(self) -> None:
        n = self.narrator
        n.step("The result")
        self._wait_until(now_ms() + round(STEADY_S * 1_000))
        self._sampler.stop()
        series, after = self._sampler.series, self._lately()
        self._show_loads({"at the worst": series.worst(), "now": after})
        decisions = self.cluster.ask("decisions", "--since", "1h")["decisions"]
        series.moved([decision for decision in decisions if decision["subject"] == "shed"])
        apart = spread(after)
        self.promises.check(
            apart <= SPREAD_MAX,
            f"the busiest broker and the idlest are {100 * apart:.0f} % of a machine apart (at most {100 * SPREAD_MAX:.0f} %)",
        )
        back = series.returned()
        self.promises.all(
            [f"{bundle} came back to its first broker" for bundle in back],
            f"none of {len(series.moves)} moves brought a bundle back",
        )
        self.until_served()
        self._writer_ends()
        self.check_owners()
        self.check_digests()

    def _plot(self) -> None:
        n = self.narrator
        n.step("The plot")
        files, why = self._sampler.series.write(self.folder)
        for path in files:
            n.good(f"{path}")
        if why:
            n.say(f"No plot: {why}")

    # --- parts of steps ---------------------------------------------------------------------------------------------

    @property
    def _sampler(self) -> Sampler:
        if self.sampler is None:
            raise RuntimeError("the loads are not being read")
        return self.sampler

    def _writer_ends(self) -> None:
        self.writer.stop()
        gaps = [gap.length_ms for gap in self.writer.gaps() if gap.length_ms is not None]
        longest = f"the longest gap of a topic {max(gaps) / 1_000:.1f} s" if gaps else "no gap noticed"
        self.promises.all(
            self.writer.broken,
            f"{self.writer.writes:,} writes, none accepted by two owners or by a former one; {longest}",
        )

    def _lately(self) -> dict[str, float]:
        return self._sampler.series.lately()

    def _show_loads(self, rows: Mapping[str, Mapping[str, float]]) -> None:
        self.narrator.table(
            ("load, part of a machine", *BROKERS, "apart"),
            [
                (name, *(_part(loads.get(broker)) for broker in BROKERS), _part(spread(dict(loads))))
                for name, loads in rows.items()
            ],
        )

    def _wait_until(self, at_ms: int) -> None:
        while (left_ms := at_ms - now_ms()) > 0:
            time.sleep(min(_POLL_S, left_ms / 1_000))


def _part(load: float | None) -> str:
    return "-" if load is None else f"{100 * load:.0f} %"


def _short(bundle: str) -> str:
    place = place_of_bundle(bundle)
    return f"{place.namespace}/{range_name(place.lower, place.upper)}"
