"""Kafka as a sink for PySpark: ``df.write`` and ``df.writeStream`` with ``format("downspout-kafka")``."""
