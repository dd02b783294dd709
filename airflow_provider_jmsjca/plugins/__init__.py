"""Listeners that run in Airflow's processes. Only Airflow imports this folder.

This folder may import every folder below, but imports little, because each of Airflow's processes loads it.
"""
