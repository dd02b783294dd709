"""Tasks that wait for messages."""
