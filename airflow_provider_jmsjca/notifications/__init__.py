"""Messages about the outcome of a task or a DAG run.

This folder may import `operators` and all below.
"""
