"""Fixtures for pytest; see the builder of the Kafka room."""
