"""Snapshots: all inputs of a decision, as one JSON file."""
