"""Destinations as Airflow's assets, and what tasks do with them as lineage.

May import `triggers`, `hooks` and all below. Sensors and operators import this room.
"""
