"""The audit: is every offset in the files once, and if not, why not?"""

from __future__ import annotations

from downspout.exports import offered

__getattr__, __all__ = offered(
    __name__,
    {
        "apart": "ReplayApart",
        "audit": "AuditReport EXIT_CODES Window",
        "files": "look_at_files visible_files",
        "replay": "make_replay",
    },
)
