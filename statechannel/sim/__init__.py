"""The deterministic simulator: one thread, virtual time, one seed; the same seed gives the same trace, byte for byte.

Two levels share the log and cleaner models. The *protocol* level drives readers (`protocol.replica`) with scripted writers
and checks joins against an omniscient reader. The *engine* level drives whole brokers (`engine.engine`) through crashes,
pauses, lost reports and elections. `python -m statechannel.sim --help` runs both.
"""
