"""Rows into tables of a database, exactly once: rows, and the offsets that they stand for, in one transaction.

To change how a flush and its log are one transaction: sql_writer.py
To change what the log in the database holds: sql_writer.py
"""
