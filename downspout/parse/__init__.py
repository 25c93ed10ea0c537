"""JSON and CSV become rows, record by record and in columns, with the same outcome."""
