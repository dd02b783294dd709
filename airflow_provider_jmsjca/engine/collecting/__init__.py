"""Takes the messages of a queue in batches and acknowledges each batch once it is sealed.

May import `engine.moving`.
"""
