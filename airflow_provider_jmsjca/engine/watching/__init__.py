"""Checks queues without consuming: whether they have messages, and whether messages are stuck.

May import `engine.connecting`.
"""
