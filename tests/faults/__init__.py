"""Real processes under real faults: brokers, Kafka nodes, links between them; a checker reads what happened (design/faults.md)."""
