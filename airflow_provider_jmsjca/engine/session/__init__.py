"""JMS connections and sessions as users of the library call them: send, receive, commit, browse.

This folder may import `engine.connecting`.
"""
