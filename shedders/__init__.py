"""Strategies that choose which bundles a loaded broker should let go, and where they go."""
