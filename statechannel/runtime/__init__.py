"""What turns the pure engine into a running broker: one loop, its threads, its hooks, its answers.

`driver` steps the engine and performs its effects, `host` puts driver, Kafka and hooks together and watches over them,
`requests` lets commands that have not joined ask for things, `changes` tells what was accepted.
"""
