"""Listeners that Airflow's processes run for us. Only Airflow imports this room.

May import every room below, and imports little: each of Airflow's processes loads this.
"""
