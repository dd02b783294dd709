"""Bytes in and out: a socket with or without TLS, frames, and the thread that reads them.

This folder handles STOMP frames independently of brokers, the meaning of headers and pending requests. The
rest of the transport builds on it. It imports nothing from its sibling folders.
"""
