"""Receives messages of a destination in batches, and acknowledges them once they are sealed.

May import `engine.moving`.
"""
