"""The store in a database: tables, migrations, transactions, and one file for each feature.

SQLite serves one host, PostgreSQL several. This folder may import `store.base`.
"""
