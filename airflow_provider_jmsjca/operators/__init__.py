"""Tasks that send messages, handle them, collect them, and hand them to Spark.

May import `sensors`, `assets`, `triggers`, `hooks` and all below.
"""
