"""Replicas per topic and broker."""

from __future__ import annotations

from shedders.partitions.goals.topic_goal import TopicGoal


class TopicReplicas(TopicGoal):
    """Each broker holds as many replicas of a topic as the others.

    Formula, for each topic and broker:

        mean = replicas of the topic / brokers
        mean x (1 - range) <= replicas of the topic on the broker <= mean x (1 + range)

    The bounds are whole numbers, and at least those of a fair split: 10 replicas on 4 brokers are 2 or 3 each.

    Moves: from a broker above to one below, the smallest replica first; among equals off the fullest, to the emptiest.

    Example: 6 replicas as 4, 2, 0 on three brokers: two move from the first to the third.

    Source: Cruise Control's TopicReplicaDistributionGoal.
    """

    name = "topic-replicas"
    unit = "replicas"
