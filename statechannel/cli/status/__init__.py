"""`statechannel status`."""
