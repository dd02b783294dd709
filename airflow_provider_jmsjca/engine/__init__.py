"""Drivers that carry out the decisions of the pure core over any transport.

Each folder has one responsibility; its docstring lists the folders it may import. All of them may import
`spool`, `store`, `transports` and `core`, but neither Airflow nor Spark.
"""
