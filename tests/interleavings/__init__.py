"""Two or three engines on one log, in every order of what may happen: no two owners, and nothing that stays undone."""
