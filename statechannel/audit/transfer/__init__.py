"""Export files and the import of a channel from one."""
