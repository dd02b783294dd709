"""Messages about the outcome of a task or a DAG run.

May import `operators` and all below.
"""
