"""Where the load of this broker comes from: the host, its network interfaces, its bundles."""
