"""Storm's semantics in one process: graph, groupings, acker, tasks, loop.

To change which task receives a tuple: groupings.py
To change how tuple trees are counted, and time out: acker.py
To change how a bolt's exception is handled: bolt_task.py
To change when a bolt is considered broken: runtime.py
To change how a topology file is loaded: load.py
"""

from __future__ import annotations

from downspout.exports import offered

__getattr__, __all__ = offered(
    __name__,
    {
        "acker": "Latencies PendingTrees Tree bucket_of quantile_ms",
        "findings": "chunk_findings transaction_findings",
        "graph": "Component Graph Input OutputStream component_of from_class topology_id",
        "loop": "Bounds Engine LAST_TICKS_S",
        "result": "Counts RunResult TaskResult WorkerResult",
        "runtime": "Stacks",
        "settings": "configurations resolve",
        "spout_task": "FREE_S_MAX",
        "task": "Task construct",
    },
)
