"""Command `statechannel audit` and its subcommands."""
