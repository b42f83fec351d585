"""The jobs: each module is a command of `statechannel spark run`, and a program of its own (`python -m spark.jobs.NAME`)."""
