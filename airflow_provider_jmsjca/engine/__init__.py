"""Drivers: carry out the decisions of the pure core over any transport.

Each folder has one responsibility; its docstring lists the folders it may import. May import `spool`,
`store`, `transports` and `core`, but neither Airflow nor Spark.
"""
