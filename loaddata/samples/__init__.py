"""Load of Kafka's own partitions: sources of samples, the sample topic, averages, and cluster layouts."""
