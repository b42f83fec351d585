"""Everything that decides a verdict: records, accepted states, the fold of a log, and how a reader joins it. Pure."""
