"""The files between the broker and Spark: batches of messages, their attempts, and identities of messages.

Imports neither pyspark nor Airflow; may import `core` and `errors`.
"""
