"""`statechannel import`."""
