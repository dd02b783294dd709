"""Looks at queues without consuming: whether messages are there, and whether messages are stuck.

May import `engine.connecting`.
"""
