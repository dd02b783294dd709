"""The three levels of configuration: URLs, layers, administered objects, merging, explanation.

May import `core.options`, and the modules of `core` itself.
"""
