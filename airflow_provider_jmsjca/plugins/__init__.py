"""What the scheduler runs for us. Nobody imports it but Airflow."""
