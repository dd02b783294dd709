"""Values and decisions: no I/O, clock, thread, Airflow or Spark in here.

Time comes in as an argument, and a decision is a value that a driver carries out. May import `errors`.
"""
