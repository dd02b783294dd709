"""The files between the broker and Spark: segments, manifest, fences, known identities.

Imports neither pyspark nor Airflow; may import `core` and `errors`.
"""
