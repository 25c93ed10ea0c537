"""Runnable examples, each with its native Spark version."""
