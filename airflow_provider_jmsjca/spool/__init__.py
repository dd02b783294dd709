"""The files between the broker and Spark: segments, manifest, fences, identities of stored messages.

Imports neither pyspark nor Airflow; may import `core` and `errors`.
"""
