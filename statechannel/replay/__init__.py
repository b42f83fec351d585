"""Replay of a finished log, judged as by a replica: for audits and for Spark. Pure."""
