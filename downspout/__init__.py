"""Storm-style spouts and bolts in pure Python: Kafka in, exactly-once Parquet out."""
