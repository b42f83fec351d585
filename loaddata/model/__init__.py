"""Load of brokers and bundles as values, and how it is averaged. Pure."""
