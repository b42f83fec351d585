"""Policies of a channel: kinds, records, the fold of their topic, and the policies in effect."""
