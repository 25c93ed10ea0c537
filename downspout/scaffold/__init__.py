"""``downspout new``: a new project with columns inferred from records.

To change the files of a new project: project.py
To change how columns are inferred: infer.py
"""

from __future__ import annotations

from downspout.exports import offered

__getattr__, __all__ = offered(
    __name__,
    {
        "project": "create",
    },
)
