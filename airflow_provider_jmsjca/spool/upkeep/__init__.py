"""Upkeep of a spool: the states of its batches, pruning, and batches that somebody left or damaged.

Commands, the maintenance operator and collecting tasks call it. May import the rest of `spool`.
"""
