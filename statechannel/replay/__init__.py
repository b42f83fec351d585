"""A finished log, judged as a replica would judge it: for audits and for Spark. Pure."""
