"""Real processes under real faults: brokers, Kafka nodes, links; a checker reads what happened (design/faults.md)."""
