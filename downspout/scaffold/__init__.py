"""A new project, its columns inferred from records: ``downspout new``."""

from __future__ import annotations

from downspout.exports import offered

__getattr__, __all__ = offered(
    __name__,
    {
        "project": "create",
    },
)
