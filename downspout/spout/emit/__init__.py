"""What leaves: records as tuples or chunks, and what their acks and fails decide."""
