"""Goals of the planner, one file each."""
