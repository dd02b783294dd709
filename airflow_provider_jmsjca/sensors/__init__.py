"""Tasks that wait for messages.

May import `assets`, `triggers`, `hooks` and all below.
"""
