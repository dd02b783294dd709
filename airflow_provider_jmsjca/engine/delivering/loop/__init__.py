"""The driver for event loops: deliveries are awaited, and settled by a serial executor beside the loop.

This folder may import `engine.delivering`, `engine.watching` and `engine.connecting`.
"""
