"""Kafka's own partitions: goals, the planner, plans, and their execution (uses no part of the channel)."""
