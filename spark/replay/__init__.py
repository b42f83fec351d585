"""The replay of a whole log by many tasks, and the audit engine `spark`."""
