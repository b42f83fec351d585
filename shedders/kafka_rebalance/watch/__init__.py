"""Autopilot with brakes: looks at a cluster at intervals, proposes plans, and executes them within a budget."""
