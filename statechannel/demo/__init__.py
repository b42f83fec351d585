"""Demo: Kafka and three brokers on this machine, public commands and what they print, and checks of what came of them."""
