"""Copies of messages that the product sends itself: dead letters, parked, in progress, moved for others.

Pure values; may import `core.message`, `core.redelivery` and `core.destination`.
"""
