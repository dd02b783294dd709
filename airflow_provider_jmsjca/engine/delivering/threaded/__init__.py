"""The driver for listeners: a pool of threads calls the handler and settles.

This folder may import `engine.delivering`, `engine.watching`, `engine.session` and `engine.connecting`.
"""
