"""A package, so that no other distribution's top-level `tests` can stand before it."""
