"""Spark jobs over the channel: history, replay and analysis, with the rules of the core."""
