"""Examines an installation for problems that keep messages from being processed.

Each function examines one part and returns findings (`operating.findings`). An examination changes nothing:
it logs in, reads statistics, and browses queues if browsing has no side effect on this broker.

May import the rest of `operating` and what `operating` may import.
"""
