"""`statechannel simulate`."""
