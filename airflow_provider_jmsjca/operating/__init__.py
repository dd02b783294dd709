"""Operations on queues and dead letters, with typed results: one service below commands and pages.

No front end has logic of its own. May import `engine` and everything below; never Airflow.
"""
