"""Stores: they keep what must outlive a process, such as attempts, ids handled, and messages in limbo.

`base` says what a store does, `memory` is the twin for tests, `sql` keeps it in SQLite or PostgreSQL. May
import `core`; knows neither Airflow nor a broker.
"""
