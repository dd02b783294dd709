"""The shell for event loops: deliveries are awaited, and settled by a serial executor beside the loop.

May import `engine.delivering`, `engine.watching` and `engine.connecting`.
"""
