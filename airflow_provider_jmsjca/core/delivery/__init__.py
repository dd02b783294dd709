"""The delivery machine: decides how an activation handles each message, and does no I/O.

`machine.DeliveryMachine.handle(event, now)` returns decisions. A driver sends the `events` and carries out
the `decisions`. This folder may import `core.copies` and `core.redelivery`.

This module imports nothing, because DAG files need the settings but not the machine.
"""
