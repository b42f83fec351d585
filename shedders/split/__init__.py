"""Automatic splits: when a bundle is split, and where. Pure."""
