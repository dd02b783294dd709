"""Jobs that can be submitted to Spark as they are."""
