"""Load reports: their schedule and records. Pure."""
