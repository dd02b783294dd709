"""Batches for Spark: the library for jobs, ready-made jobs, tables and data sources.

The only folder that imports pyspark; never imports Airflow. This folder may import `engine`, `spool` and all
below.
"""
