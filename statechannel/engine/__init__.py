"""The engine of one broker: `Engine.step(now, input) -> effects`, and its parts. Pure."""
