"""Strategies: which bundles move, where they go, which are split, and why."""
