"""The three levels of configuration: layers, administered objects, subscriptions.

May import everything of `core` but `core.activation` and `core.delivery`.
"""
