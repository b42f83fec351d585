"""Questions about balancing, as rows: loads, decisions, policies, cordons."""
