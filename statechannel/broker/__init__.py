"""A running broker around the engine: event loop, threads, Kafka clients, hooks, and the requests topic."""
