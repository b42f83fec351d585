"""Placement strategies: which broker takes a bundle. Pure."""
