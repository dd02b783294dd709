"""The files between the broker and Spark: segments, manifest, fences, known identities.

Sees neither pyspark nor Airflow; may import `core` and `errors`.
"""
