"""Stores: they keep what must outlive a process, such as attempts, ids handled, and messages in limbo.

`base` defines the port, `sql` implements it in SQLite and PostgreSQL. May import `core`; knows neither
Airflow nor a broker.
"""
