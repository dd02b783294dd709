"""What must outlive a process: attempts, ids handled, and the tables of messages in doubt and in limbo.

`base` says what a store does, `memory` is the twin for tests, `sql` keeps it in SQLite or PostgreSQL. May
import `core`; knows neither Airflow nor a broker.
"""
