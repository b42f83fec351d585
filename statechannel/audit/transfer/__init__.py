"""Transfer of a channel: export files, and the import from one."""
