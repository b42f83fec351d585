"""What happened on a channel: export files, the audit of a log, and the story it tells.

The rules are those of `statechannel.protocol`; this package reads and writes files and puts the findings into words.
"""
