"""Pipelines on PySpark over what the sinks wrote."""
