"""Leaders per topic and broker."""

from __future__ import annotations

from shedders.partitions.goals.topic_goal import TopicGoal


class TopicLeaders(TopicGoal):
    """Each broker leads as many partitions of a topic as the others.

    Formula, for each topic and broker:

        mean = leaders of the topic / brokers
        mean x (1 - range) <= leaders of the topic on the broker <= mean x (1 + range)

    The bounds are whole numbers, and at least those of a fair split: 10 leaders on 4 brokers are 2 or 3 each.

    Moves: leader switches from a broker above to one below (no bytes); then the leader's replica is moved, the smallest first.

    Example: 4 partitions, all led by the first of two brokers that both hold replicas: 2 switches.

    Source: Cruise Control's MinTopicLeadersPerBrokerGoal and
    LeaderReplicaDistributionGoal.
    """

    name = "topic-leaders"
    unit = "leaders"
    leading = True
