"""Execution of plans: batches, throttle, progress that survives a crash, and rollback."""
