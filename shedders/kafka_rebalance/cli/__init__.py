"""`statechannel partitions`."""
