"""The command `statechannel`: arguments in, tables or JSON out; all work is done by the packages below.

Commands join through the entry point group `statechannel.commands`; ours register the same way.
"""
