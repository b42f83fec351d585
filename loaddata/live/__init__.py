"""Load data in a running broker: the service and its topics."""
