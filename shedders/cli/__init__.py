"""The commands `shed`, `place`, `split`, `snapshot` and `strategy`; they join by `statechannel.commands` as all others do."""
