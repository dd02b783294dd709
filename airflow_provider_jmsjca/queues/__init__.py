"""JMS for the `MessageQueueTrigger` of Airflow's provider `common.messaging`.

This folder may import `triggers` and all below. Only that provider imports this folder.
"""
