"""Snapshots: everything that a decision is made from, as one JSON file."""
