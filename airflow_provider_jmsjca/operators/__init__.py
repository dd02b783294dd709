"""Tasks that send messages, process them, collect them, and pass them to Spark.

This folder may import `sensors`, `assets`, `triggers`, `hooks` and all below.
"""
