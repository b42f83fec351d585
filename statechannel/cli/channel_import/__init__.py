"""Command `statechannel import`."""
