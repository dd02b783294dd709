"""Jobs that can be submitted to Spark as they are.

May import the rest of `spark`, and `spool`.
"""
