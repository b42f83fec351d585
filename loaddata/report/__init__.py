"""Load reports: when they are due, and their records. Pure."""
