"""The commands `airflow jms ...`: queues, dead letters, activations, effective options, store and spool.

This folder may import every other folder. Only Airflow imports this one.
"""
