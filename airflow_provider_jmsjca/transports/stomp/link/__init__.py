"""The link to one broker: greeting, dialect, receipts, routes of subscriptions, limits, ids and its end.

Consumers, units of work, senders and browsers share a `Link`, which imports none of them. It builds on `wire`
and `dialects`; the modules in `stomp` build on it.
"""
