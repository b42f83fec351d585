"""An event-sourced bundle state channel on Apache Kafka.

A message-broker cluster spreads topics over bundles. Who owns which bundle is a replicated state
machine: every broker reads one compacted Kafka topic and accepts or rejects each record by the same
rules, so all of them agree without a lock service (the model is Pulsar's PIP-192).
"""
