"""Real processes under real faults: brokers, Kafka nodes, links; a checker reads what happened (design/evidence/faults.md)."""
