"""Pure folds of the topics, one for each: rows that commands, the admin API and audits read."""
