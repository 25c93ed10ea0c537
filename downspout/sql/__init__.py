"""Writing rows to a database exactly once: the rows and their log entry in one transaction.

To change how a flush and its log are one transaction: sql_writer.py
To change what the log in the database holds: sql_writer.py
"""
