"""The shell for listeners: a pool of threads calls the handler and settles.

May import `engine.delivering`, `engine.watching`, `engine.session` and `engine.connecting`.
"""
