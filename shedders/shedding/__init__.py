"""Shedding strategies: which bundles leave which brokers. Pure."""
