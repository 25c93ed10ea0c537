"""A real Kafka on this machine: one broker, or several that make one cluster."""
