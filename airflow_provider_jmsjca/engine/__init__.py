"""Drivers: they carry out, over any transport, what the pure core decides.

Each folder has one responsibility; its docstring says which folders it may import. May import `spool`,
`store`, `transports` and `core`; knows neither Airflow nor Spark.
"""
