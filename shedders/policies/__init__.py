"""Policies of a channel: kinds, records, the fold of their topic, and what is in effect."""
