"""The twin: a second, deliberately dumb implementation of the channel's rules.

It is the oracle of the tests. It shares no code with ``statechannel`` and prefers the
obvious to the quick: it keeps every record, and walks the tree again for every question.
"""
