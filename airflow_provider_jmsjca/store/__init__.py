"""The store: attempts, ids of handled messages, limbo and the registry of activations outlive a process.

`base` defines the port, `sql` implements it in SQLite and PostgreSQL. May import `core`; knows neither
Airflow nor a broker.
"""
