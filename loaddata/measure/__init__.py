"""Sources of this broker's load: the host, its network interfaces, its bundles."""
