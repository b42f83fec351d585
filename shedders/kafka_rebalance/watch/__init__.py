"""Autopilot: evaluates a cluster at intervals, proposes plans, and executes them within a budget."""
