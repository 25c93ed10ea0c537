"""Running a topology on several engines over the same records, and comparing the tables.

To change how tables are compared: comparison.py
To change what each engine runs: engines.py
"""

from __future__ import annotations

from downspout.exports import offered

__getattr__, __all__ = offered(
    __name__,
    {
        "comparison": "DIFFERENCES_MAX compare",
        "outputs": "Sink freeze",
    },
)
