"""Destinations as Airflow's assets, and their use by tasks as lineage.

This folder may import `triggers`, `hooks` and all below. Sensors and operators import this folder.
"""
