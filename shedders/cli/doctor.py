"""Checks of `statechannel doctor` for balancing: topics, settings and policies."""

from __future__ import annotations

from collections.abc import Iterator

from loaddata.settings import LoadSettings
from shedders.balancer.settings import NAME, configured
from shedders.cli.policy.write import book_of
from shedders.policies.effective import EffectivePolicies
from statechannel.cli.doctor.facts import DoctorFacts, WantedTopic
from statechannel.cli.doctor.findings import DoctorCheck, DoctorFinding, Severity
from statechannel.cli.doctor.plugins import Plugin
from statechannel.cli.kit.connection import Connection
from statechannel.cli.kit.live_log import now_ms
from statechannel.errors import StateChannelError
from statechannel.kafka.errors import TopicMissingError, TopicPolicyError
from statechannel.kafka.topic_policy import LightLags, LoadTopics, TopicSet, decisions_topic, policies_topic
from statechannel.settings import SettingsError


def topics(connection: Connection) -> list[WantedTopic]:
    """The four topics of the balancing extension, with the policies that the settings require."""
    channel = connection.topics.channel
    try:
        settings = configured(connection.settings.extensions.get(NAME, {}))
    except SettingsError:  # reported by the check below
        settings = configured({})
    loads: LoadSettings = settings.load
    retention_ms = round(loads.retention_s * 1_000)
    decisions_ms = round(settings.decisions_retention_s * 1_000), round(settings.decisions_segment_s * 1_000)
    sets: tuple[TopicSet, ...] = (
        LoadTopics(channel, light=LightLags(retention_ms, round(loads.segment_s * 1_000), retention_ms)),
        policies_topic(channel),
        decisions_topic(channel, *decisions_ms),
    )
    return [
        WantedTopic(name, policy, owner=NAME, optional=True)
        for settings_set in sets
        for name, policy in settings_set.policies.items()
    ]


def settings_of_balancer(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Check the settings of the extension."""
    try:
        configured(facts.settings.extensions.get(NAME, {}))
    except SettingsError as error:
        for problem in error.problems:
            yield DoctorFinding(
                Severity.ERROR,
                problem.rstrip("."),
                "A broker does not start with these settings.",
                f"Change extensions.{NAME} where it is set; design/balancer-settings.md lists all settings.",
            )


def policies(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Check for unreadable policies, and for those that switch something off."""
    if facts.connection is None:
        return
    try:
        effective = book_of(facts.connection).at(now_ms())
    except (TopicPolicyError, TopicMissingError):  # reported by the check of topics
        yield DoctorFinding(Severity.INFO, "the policies cannot be read until the topics are valid", checked=False)
        return
    except StateChannelError as error:
        yield DoctorFinding(
            Severity.ERROR,
            f"the policies cannot be read: {error}",
            "Brokers place and shed by the last policies that they read.",
            error.hint,
        )
        return
    yield from policy_findings(effective)


def policy_findings(effective: EffectivePolicies) -> Iterator[DoctorFinding]:
    """Findings on the policies in force."""
    for why in [*effective.closed, *filter(None, [effective.overfull])]:
        yield DoctorFinding(
            Severity.ERROR,
            why,
            "What an unreadable policy is about is forbidden, not ignored.",
            "`statechannel policy list` shows the record; set it again, or delete it.",
        )
    junk = sum(effective.junk.values())
    if junk:
        reasons = ", ".join(f"{reason} ({count})" for reason, count in sorted(effective.junk.items()))
        yield DoctorFinding(
            Severity.WARNING,
            f"{junk} records in the topic of policies were dropped: {reasons}",
            "A foreign client or a newer version writes to the topic.",
            "`statechannel policy list --output json` counts them; check which clients may write to the topic.",
        )
    if not effective.shedding_on:
        yield DoctorFinding(
            Severity.INFO,
            f"automatic moves are off: {effective.shedding_why}",
            "",
            "Switch them on again with `statechannel override end shedding`.",
        )
    cordons = effective.policies.cordons
    if cordons:
        yield DoctorFinding(
            Severity.INFO,
            f"cordoned: {', '.join(sorted(cordons))}",
            "No bundle is assigned to them.",
            f"End a cordon with `statechannel uncordon {min(cordons)}`.",
        )


balancer = Plugin(
    checks=(
        DoctorCheck("balancer-settings", "settings of the balancer are valid", settings_of_balancer),
        DoctorCheck("policies", "policies can be read", policies, needs=("kafka", "topics")),
    ),
    topics=topics,
)
"""Checks of the entry point group `statechannel.doctor`."""
