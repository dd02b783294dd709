"""The link to one broker: its greeting and dialect, receipts, subscriptions by id, limits, ids, its end.

A `Link` is what consumers, units of work, senders and browsers share; it knows none of them.
It stands on `wire` and `dialects`; the port in `stomp` stands on it.
"""
