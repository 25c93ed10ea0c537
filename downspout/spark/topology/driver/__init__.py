"""What runs on the driver: the query, its batches, and the commits to the sinks."""
