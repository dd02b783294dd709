"""Lands a folder of documents in tables, and compares each row with a reading in plain Python.

    python -m tests.bench.documents FOLDER [--group NAME ...] [--results FILE]

Each folder in `FOLDER` is a group of documents of one producer. A document is a `.json` or `.xml` file, a
line of a `.jsonl` file, a record of a `.csv` file or of an Avro container. A file `group.json` may say more;
see `groups.Options`. The documents go to a queue of a real broker, from there into batches, and into a table.
"""
