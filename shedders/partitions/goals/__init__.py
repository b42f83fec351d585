"""Goals of the planner, one file each; `shedders.partitions.registry` has them in order."""
