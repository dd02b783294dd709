"""Batches for Spark: the library for jobs, ready-made jobs, tables and data sources.

The only room that knows pyspark; knows no Airflow. May import `engine`, `spool` and all below.
"""
