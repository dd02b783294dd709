"""The shell for event loops: deliveries are awaited, and settled by a lane beside the loop.

May import `engine.delivering`, `engine.watching` and `engine.connecting`.
"""
