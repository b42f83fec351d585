"""Rebalancing of Kafka's own partitions: goals, plans and their execution. Independent of the channel."""
