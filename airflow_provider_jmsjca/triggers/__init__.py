"""Triggers: they wait for messages in the triggerer, and create events from them.

Nothing in here blocks the triggerer's event loop. May import `hooks` and all below.
"""
