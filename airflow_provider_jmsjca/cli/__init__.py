"""`airflow jms ...`: what is in force, and how to come here from elsewhere."""
