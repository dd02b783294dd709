"""Operations on queues, dead letters and activations, with typed results: a service for commands and pages.

Front ends contain no logic of their own. May import `engine` and everything below; never Airflow.
"""
