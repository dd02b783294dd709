"""Batches for Spark: the spool and its format, the library for jobs, ready-made jobs. Knows no Airflow."""
