"""The peers of the benchmarks: a short program each, run in its own environment."""
