"""The audit: is every offset in the files once, and if not, why not?"""

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
