"""Values and decisions, without I/O, clocks, threads, Airflow or Spark.

Time is an argument, and a decision is a value that a driver carries out. This folder may import `errors`.
"""
