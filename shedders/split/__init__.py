"""When bundles are split and where. Pure."""
