"""Upkeep of a spool: states of batches, pruning, replays, and repair of unfinished or damaged batches.

Used by commands, the maintenance operator and collecting tasks. This folder may import the rest of `spool`.
"""
