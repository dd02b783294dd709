"""Opens connections with backoff, keeps them in a pool, and lends them to event loops.

Imports the transport port and no other folder of the engine.
"""
