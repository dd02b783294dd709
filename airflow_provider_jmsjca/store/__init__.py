"""The store keeps state beyond a process: attempts, ids of handled messages, limbo, the activations.

`base` defines the interface, `sql` implements it in SQLite and PostgreSQL. This folder may import `core`, but
neither Airflow nor a broker's client.
"""
