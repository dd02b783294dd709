"""The delivery machine: decides how an activation handles each message, and does no I/O.

`machine.DeliveryMachine.handle(event, now)` returns decisions. A driver sends the `events` and carries out
the `decisions`. May import `core.copies` and `core.redelivery`.

Imports nothing itself: DAG files need the settings and no machine.
"""
