"""Shared parts of the commands: options, connections, output, requests to brokers, and error messages."""
