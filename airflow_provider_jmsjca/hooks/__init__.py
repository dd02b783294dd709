"""Airflow connections of type `jms`, and what Airflow knows that the engine needs: settings, store, spool.

The lowest room that knows Airflow. May import `spark`, `engine` and all below.
"""
