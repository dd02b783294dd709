"""Triggers, which wait for messages in the triggerer and create events from them.

No trigger blocks the triggerer's event loop. This folder may import `hooks` and all below.
"""
