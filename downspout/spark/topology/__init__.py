"""A topology as a PySpark job: the local engine inside each of Spark's tasks, Spark around them.

    source ──▶ stage 0: all stateless bolts and sinks, in one pass (mapInArrow)
                 └──▶ stage 1: stateful bolts and what follows them (transformWithState, one key per Storm task) ─▶ …
                        └──▶ the driver (foreachBatch): one entry in each sink's commit log, per query and batch

Tuples pass from bolt to bolt in memory; only the input of stateful bolts is shuffled. Sinks stage their files where
they run, and a batch is published as a whole.
"""

from __future__ import annotations
