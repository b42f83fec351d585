"""Kafka's own partitions: goals, plans, and their execution. Uses no part of the channel."""
