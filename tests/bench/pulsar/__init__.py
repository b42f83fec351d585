"""Apache Pulsar itself, beside this project in the same hour: its jars, its processes, its clients, and the lane."""
