"""Values and decisions: no I/O, clock, thread, Airflow or Spark in here."""
