"""The three levels of configuration: URLs, layers, administered objects, the merged result and why.

May import `core.options`, and the modules of `core` itself.
"""
