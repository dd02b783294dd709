"""Drivers: they carry out what the core decides, on a transport. No Airflow in here."""
