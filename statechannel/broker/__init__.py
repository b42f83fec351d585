"""Runtime of a broker around the engine: event loop, threads, Kafka clients, hooks, and the requests topic."""
