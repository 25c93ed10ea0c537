"""The same topology on several engines, over the same records: are the tables equal?"""

from __future__ import annotations

from downspout.exports import offered

__getattr__, __all__ = offered(
    __name__,
    {
        "job": "freeze",
        "multiset": "DIFFERENCES_MAX compare",
        "tables": "Sink",
    },
)
