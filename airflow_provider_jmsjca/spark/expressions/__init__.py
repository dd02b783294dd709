"""SQL expressions over the messages of a batch, as texts that Spark parses.

`values` reads, tests and converts the values of a body. `reasons` says why a message is rejected.
"""
