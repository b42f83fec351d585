"""The balancer of a running broker."""
