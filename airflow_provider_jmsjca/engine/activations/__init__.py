"""Running consumptions: plain, on every member of a cluster, and of a distributed subscription.

The top floor of the engine; may import everything below it.
"""
