"""Makes the reference pages out of the code: `python -m tests.docs`."""
