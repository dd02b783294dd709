"""Drivers: what moves messages between a broker and the user's code."""
