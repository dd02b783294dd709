"""What waits for messages in the triggerer."""
