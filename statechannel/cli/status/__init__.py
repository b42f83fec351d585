"""Command `statechannel status`."""
