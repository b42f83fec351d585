"""One decision from a cluster to moves: placing, moves in flight, budgets, dry runs. Pure."""
