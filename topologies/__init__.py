"""Runnable examples, each with its Spark twin."""
