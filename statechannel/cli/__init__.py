"""Command line `statechannel`: arguments in, tables or JSON out; the packages below do the work.

Commands register in the entry point group `statechannel.commands`; ours do so too.
"""
