"""Plans of reassignments: the virtual cluster, the search, and plan files. Pure but for files."""
