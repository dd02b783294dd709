"""Opens connections, tries again with back-off, keeps them in a pool, and lends them to event loops.

Knows the transports' port and nothing else of the engine.
"""
