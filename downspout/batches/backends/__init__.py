"""The stores of batch transactions: metadata in SQLite, PostgreSQL and ZooKeeper, keyed state in SQLite and PostgreSQL.

``downspout/__init__.py`` registers them. Connections and their errors are those of the offset stores.
"""
