"""Reproducible benchmarks against named peers."""
