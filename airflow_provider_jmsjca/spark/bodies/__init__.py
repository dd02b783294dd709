"""Strict readers of bodies in XML, CSV and Avro, which make JSON of them.

`formats` has the options of each, and `avro` the binary encoding. Executors load this folder, so it imports
neither PySpark nor anything of a cluster. May import `core` and `errors`.
"""
