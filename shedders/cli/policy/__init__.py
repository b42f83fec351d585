"""`statechannel policy` and `override`."""
