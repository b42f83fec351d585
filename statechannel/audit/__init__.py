"""Audit of a channel's log: export and import of files, and reports of what happened.

The rules are those of `statechannel.protocol`; this package reads and writes files and formats the findings.
"""
