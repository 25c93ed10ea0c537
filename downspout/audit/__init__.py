"""Checking that each offset is in the files exactly once, and explaining each difference.

To change when an audit says exact, and its exit codes: report.py
To change how files are compared with the log: output_files.py
"""

from __future__ import annotations

from downspout.exports import offered

__getattr__, __all__ = offered(
    __name__,
    {
        "audit": "AuditReport EXIT_CODES AuditWindow",
        "output_files": "look_at_files visible_files",
        "replays": "ReplayApart make_replay",
    },
)
