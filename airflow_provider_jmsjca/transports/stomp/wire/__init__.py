"""Bytes in and out: a socket with or without TLS, frames, and the thread that reads them.

What is here knows STOMP's frames and no broker: neither what a header means nor who waits for an answer.
Everything else of the transport stands on it; nothing here imports from the folders beside it.
"""
