"""Goals of the planner. Pure."""
