"""Promises of the demo, and their checks."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from statechannel.demo.client import Client, ask_broker
from statechannel.demo.cluster import DemoBroker, DemoCluster
from statechannel.demo.link import LinkDownError
from statechannel.demo.narrator import Narrator
from statechannel.demo.observed_gaps import AuditedGap, GapComparison, compare

DIGEST_S = 10.0
"""Longest wait until all brokers have applied the audited log."""
_POLL_S = 0.2


@dataclass(slots=True)
class Promises:
    """Collects and prints checked promises.

    Attributes:
        broken: Promises that did not hold.
        touched: Bundles already used by a step.
    """

    narrator: Narrator
    kept: int = 0
    broken: list[str] = field(default_factory=list)
    touched: set[str] = field(default_factory=set)

    def check(self, held: bool, text: str) -> None:
        """Note whether a promise held."""
        if held:
            self.kept += 1
            self.narrator.good(text)
        else:
            self.broken.append(text)
            self.narrator.bad(text)

    def all(self, problems: Sequence[str], text: str) -> None:
        """Note a promise that is broken by each of the problems."""
        for problem in problems:
            self.check(False, problem)
        if not problems:
            self.check(True, text)

    def gaps(
        self, audit: dict[str, Any], client: Client, *, topics: Iterable[str], since_ms: int, until_ms: int
    ) -> GapComparison:
        """Compare the client's gaps with the audit's."""
        audited = [AuditedGap.of(fields) for fields in audit["gaps"]]
        noticed = client.gaps()
        comparison = compare(audited, noticed, topics=topics, since_ms=since_ms, until_ms=until_ms)
        self.all(
            comparison.problems,
            f"the audit has {len(audited)} gaps, each with its cause; the client noticed {len(noticed)} in "
            f"{client.writes:,} writes, and each is one of the audit's",
        )
        self.all(client.broken, "no write was accepted by two owners, or by a former one")
        return comparison


def alone_at_the_end(promises: Promises, bundles: Sequence[dict[str, Any]], brokers: Sequence[DemoBroker]) -> None:
    """Check that every bundle is served by exactly one broker, its owner by the log."""
    serving: dict[str, list[str]] = {}
    for broker in brokers:
        try:
            answer = ask_broker(broker.url, "serving")
        except LinkDownError as error:
            promises.check(False, f"{broker.id} does not answer: {error}")
            continue
        for bundle in answer["serving"]:
            serving.setdefault(bundle, []).append(broker.id)
    problems = [
        f"{bundle['bundle']} is {bundle['state']}, owned by {bundle['owner']}, and served by {serving.get(bundle['bundle'], [])}"
        for bundle in bundles
        if bundle["state"] != "Assigned" or serving.get(bundle["bundle"]) != [bundle["owner"]]
    ]
    live = {bundle["bundle"] for bundle in bundles}
    problems += [
        f"{bundle} is served by {by} but does not live" for bundle, by in serving.items() if bundle not in live
    ]
    promises.all(problems, f"each of the {len(bundles)} bundles is served by exactly one broker, its owner in the log")


def same_digest(promises: Promises, cluster: DemoCluster) -> None:
    """Check that all brokers, and an audit of the same log, have the same accepted states."""
    until_s = time.monotonic() + DIGEST_S
    while True:
        expected = cluster.ask("audit")["digest"]
        digests = {broker.id: _digest_of(broker) for broker in cluster.living()}
        if set(digests.values()) == {expected} or time.monotonic() > until_s:
            break
        time.sleep(_POLL_S)
    differing = [
        f"the digest of {broker} is {digest}, the audit's {expected}"
        for broker, digest in digests.items()
        if digest != expected
    ]
    promises.all(differing, f"digest {expected[:16]}... of the audit is also that of {', '.join(digests)}")


def _digest_of(broker: DemoBroker) -> str | None:
    try:
        answer = ask_broker(broker.url, "digest")
    except LinkDownError:
        return None
    digest: str | None = answer.get("digest")
    return digest
