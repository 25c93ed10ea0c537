"""Kafka as a source of PySpark, in pure Python: planned on the driver, read on the executors."""
