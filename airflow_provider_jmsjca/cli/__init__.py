"""The commands `airflow jms ...`: queues, dead letters, activations, effective options, store and spool.

May import every other folder. Only Airflow imports this one.
"""
