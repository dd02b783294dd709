"""The three levels of configuration: URLs, layers, administered objects, what holds of it all, and why.

May import `core.options`, and the modules of `core` itself.
"""
