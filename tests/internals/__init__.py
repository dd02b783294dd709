"""The internal names that the tiers above `unit` use: a module for each room of the package.

Those tests import public names from the package, and all others from here. So a module of the package that
moves changes one file of tests.
"""
