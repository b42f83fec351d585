"""Which brokers may take a bundle. Pure."""
