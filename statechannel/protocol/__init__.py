"""Protocol of the channel: records, accepted states, the fold of a log, and the join of a reader. Pure."""
