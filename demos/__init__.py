"""What ``make demo``, ``make storm-demo`` and ``make spark-demo`` run: ``python -m demos --on local|storm|spark``."""
