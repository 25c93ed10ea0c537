"""Storm's semantics in one process: graph, groupings, acker, tasks, loop."""

from __future__ import annotations

from downspout.exports import offered

__getattr__, __all__ = offered(
    __name__,
    {
        "stacks": "Stacks",
        "spout_task": "FREE_S_MAX",
        "acker": "Forest Tree",
        "configuration": "configurations",
        "graph": "Component Graph Input Stream component_of from_class",
        "latencies": "Latencies bucket_of bucket_quantile_ms",
        "loop": "Bounds Engine LAST_TICKS_S",
        "result": "Counts RunResult TaskResult WorkerResult",
        "task": "Task construct",
        "values": "resolve",
    },
)
