"""Receives messages of a destination in batches, and acknowledges them once they are sealed.

This folder may import `engine.moving`.
"""
