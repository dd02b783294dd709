"""The page in Airflow: activations, queues, dead letters, limbo and batches, as HTML made on the server.

The page has no logic of its own: it checks the login, the permission and the form, calls `operating`, and
renders the result. May import `triggers`, `hooks` and everything below, and Airflow's API server.
"""
