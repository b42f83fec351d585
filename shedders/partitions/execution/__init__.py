"""Carries a plan out: batches, pace, throttle, progress that survives a kill, and the way back."""
