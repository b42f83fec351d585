"""Kafka's own partitions: samples of their load, what a cluster looks like, and a copy of it that goals may change."""
