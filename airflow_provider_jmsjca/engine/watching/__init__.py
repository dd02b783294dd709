"""Checks queues without consuming: whether they have messages, and whether messages are stuck.

This folder may import `engine.connecting`.
"""
