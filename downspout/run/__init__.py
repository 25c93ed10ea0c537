"""``downspout run`` and ``downspout check`` on one machine: the runner, the live view, several workers.

The package is callable, as ``downspout.run(Orders, until="end")`` (:func:`downspout.run.call.run`), because importing
it replaces the function of that name in ``downspout``'s namespace.

To change how a run starts and ends: runner.py
To change the checks of `downspout check`: topology_check.py
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
