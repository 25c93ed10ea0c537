"""Our programs on a Spark cluster: packed, submitted, and found by every executor."""
