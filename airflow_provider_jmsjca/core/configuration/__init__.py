"""The three levels of configuration: layers, administered objects, subscriptions.

May import `core.options`, and the modules of `core` itself.
"""
