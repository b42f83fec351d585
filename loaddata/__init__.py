"""Load data of a cluster: what brokers measure, report, and know of each other."""
