"""Activations: on one connection, on every member of a cluster, and on a distributed subscription.

The top layer of the engine; may import everything below it.
"""
