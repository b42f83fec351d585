"""Kafka adapter: librdkafka to and from the inputs and effects of the engine.

The only package that imports `confluent_kafka`; everything above it speaks of topics by role
(`statechannel.engine.inputs.Topic`) and of records as bytes.
"""
