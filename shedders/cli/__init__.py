"""The commands `shed`, `place`, `split plan`, `snapshot` and `strategy`; they join by `statechannel.commands`."""
