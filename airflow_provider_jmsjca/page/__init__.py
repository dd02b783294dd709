"""The page in Airflow: activations, queues, dead letters, limbo and batches, as HTML rendered on the server.

The page has no logic of its own. It checks login, permission and form, calls `operating`, and renders the
result. This folder may import `triggers`, `hooks` and everything below, and Airflow's API server.
"""
