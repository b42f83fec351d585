"""The commands that brokers execute, each described once (`statechannel.operations.table`)."""
