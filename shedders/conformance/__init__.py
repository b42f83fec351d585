"""Conformance suite of strategies: `statechannel strategy check NAME`, or `conform` in a test."""
