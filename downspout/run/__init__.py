"""``downspout run`` and ``downspout check`` on one machine: the runner, the live view, several workers.

The package can be called, as ``downspout.run(Orders, until="end")`` (:func:`downspout.run.call.run`). When a package is
first imported, Python puts it into its parent's namespace, here in the place of the function of that name.

To change how a run starts and ends: runner.py
To change what `downspout check` checks: topology_check.py
To change when a dead worker is restarted: supervisor.py
To change how other threads get metrics: run_snapshots.py
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from downspout.exports import offered


class _Callable(ModuleType):
    def __call__(self, *args: Any, **options: Any) -> Any:
        from downspout.run.call import run

        return run(*args, **options)


sys.modules[__name__].__class__ = _Callable

__getattr__, __all__ = offered(
    __name__,
    {
        "run_snapshots": "RunMetrics Several Snapshots",
        "supervisor": "ERRORS_MAX STEADY_S",
        "topology_check": "findings resolve",
        "worker_process": "WorkerJob WorkerMessage WorkerReport",
    },
)
