"""The delivery machine: decides how an activation handles each message, and does no I/O.

`machine.DeliveryMachine.handle(event, now)` returns decisions; `events` and `decisions` say what a driver
sends and carries out. May import `core.copies` and `core.redelivery`.

Imports nothing itself: DAG files need the settings and no machine.
"""
