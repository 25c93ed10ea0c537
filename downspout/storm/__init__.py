"""A real Storm on one machine, and what streamparse needs to find there: see ``downspout storm``."""

from __future__ import annotations

from downspout.exports import offered

__getattr__, __all__ = offered(
    __name__,
    {
        "logs": "show",
        "node": "StormNode",
        "node_files": "Daemons HOST",
        "slots": "StuckSlot stuck_slots",
        "stats": "TopologyStats",
    },
)
