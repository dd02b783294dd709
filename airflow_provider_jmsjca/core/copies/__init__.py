"""Copies of messages that the package itself sends.

These are dead letters, delayed messages, in-progress messages, and messages moved to a load-balancing queue.
Pure values; may import `core.message`, `core.redelivery` and `core.destination`.
"""
