"""`statechannel audit` and its subcommands."""
