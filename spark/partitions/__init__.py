"""The job `partition-loads`: samples of Kafka's partitions as loads."""
