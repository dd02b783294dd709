"""Airflow connections of type `jms`, and Airflow's values for the engine: settings, store, spool.

The lowest folder that depends on Airflow. This folder may import `spark`, `engine` and all below.
"""
