"""The commands `airflow jms ...`: they show what is in force, mend stores and spools, convert descriptors.

May import every other room. Only Airflow imports this one.
"""
