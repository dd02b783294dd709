"""The link to one broker: its greeting and dialect, receipts, subscriptions by id, limits, ids, its end.

Consumers, units of work, senders and browsers share a `Link`, which imports none of them. It builds on `wire`
and `dialects`; the port in `stomp` builds on it.
"""
