"""Airflow connections of type `jms`."""
