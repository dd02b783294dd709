"""JMS for Airflow's `MessageQueueTrigger`."""
