"""A real Storm on one machine, and what streamparse needs to find there: see ``downspout storm``."""

from __future__ import annotations

from downspout.exports import offered

__getattr__, __all__ = offered(
    __name__,
    {
        "node": "StormNode",
        "node_files": "Daemons HOST StuckSlot stuck_slots",
        "node_logs": "show",
        "stats": "TopologyStats",
    },
)
