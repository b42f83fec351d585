"""Filters that decide which brokers may take a bundle. Pure."""
