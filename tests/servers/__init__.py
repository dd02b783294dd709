"""Real servers for tests, demo and benchmarks: fetched, configured, started and stopped from Python.

Nothing here imports Airflow. The command line is `python -m tests.servers`; tests use the fixtures in
`fixtures.py`.
"""
