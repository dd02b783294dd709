"""The three levels of configuration: URLs, layers, administered objects, merging, explanation.

This folder may import `core.options`, and the modules of `core` itself.
"""
