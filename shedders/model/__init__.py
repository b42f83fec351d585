"""What strategies work with: the cluster, plans, ports, registry and profiles. Pure."""
