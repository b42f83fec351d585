"""Calls of the admin API that are sent again while brokers die, and what the log says of each."""
