"""Messages that say what became of a task or a DAG run.

May import `operators` and all below.
"""
