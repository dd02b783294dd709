"""Schemas of bodies in files: DDL, Spark's JSON form, Avro and JSON Schema.

`schema_file` reads a file, and `reader` has the rules that the readers of Avro and JSON Schema share. May
import `core` and `errors`. Modules import pyspark at the top, because only jobs load this folder.
"""
