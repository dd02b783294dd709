"""JMS connections and sessions as users of the library call them: send, receive, commit, browse.

May import `engine.connecting`.
"""
