"""Destinations as Airflow's assets, and what tasks do with them as lineage."""
