"""The explorer: all logs of a small world, all that the cleaner may leave of them, all points at which a joiner may begin.

Scope, method and figures: design/evidence/proof.md.
"""
