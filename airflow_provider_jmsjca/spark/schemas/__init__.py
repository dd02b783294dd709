"""Schemas of bodies in files: words, Spark's JSON form, Avro and JSON Schema.

`schema_file` reads a file, and `reader` has the rules that the readers of Avro and JSON Schema share. May
import `core` and `errors`, and pyspark at once: only jobs load this folder.
"""
