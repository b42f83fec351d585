"""The pure core: no clock, I/O, randomness, thread or client is known in here.

`statechannel.core.engine.Engine.step(now, input)` is the one door. The live runtime, the simulator, the audit
and the Spark workers all import the same rules from this package.
"""
