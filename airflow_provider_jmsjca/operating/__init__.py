"""Operations on queues, dead letters and activations, with typed results: a service for commands and pages.

Front ends contain no logic of their own. This folder may import `engine` and everything below; never Airflow.
"""
