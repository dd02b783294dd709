"""Tasks that send messages, collect them, and hand them to Spark."""
