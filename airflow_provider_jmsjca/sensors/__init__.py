"""Tasks that wait for messages.

This folder may import `assets`, `triggers`, `hooks` and all below.
"""
