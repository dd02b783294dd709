"""Jobs that can be submitted to Spark as they are.

This folder may import the rest of `spark`, and `spool`.
"""
