"""A real Storm on one machine, and replacements for the programs that streamparse calls: see ``downspout storm``.

To change how the local Storm is started: node.py
To change what `sparse run` does: local.py
To change how `lein` is imitated: lein.py
To change what statistics are shown: stats.py
"""

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
