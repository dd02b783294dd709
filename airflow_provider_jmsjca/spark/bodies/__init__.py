"""Strict readers that convert XML, CSV and Avro bodies to JSON.

`formats` has the options of each format, and `avro` reads Avro's binary encoding. Executors load this folder,
so it imports neither PySpark nor modules that need a cluster. This folder may import `core` and `errors`.
"""
