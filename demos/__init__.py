"""The demos of ``make demo``, ``make storm-demo``, ``make spark-demo``: ``python -m demos --on local|storm|spark``."""
