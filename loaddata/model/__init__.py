"""Values for the load of brokers and bundles, and their averages. Pure."""
