"""Carries a plan out: batches, throttle, progress that survives a kill, and rollback."""
