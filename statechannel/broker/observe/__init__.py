"""Observability of a running broker: metrics, events, traces, health, and the HTTP endpoint."""
