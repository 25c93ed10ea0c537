"""This machine: processes, locks, private files, jars, Java, and packaging for other machines.

To change which jars are used: jars.py
To change which Java is used: java.py
To change how services of a directory are managed: service.py
"""

from __future__ import annotations

from downspout.exports import offered

__getattr__, __all__ = offered(
    __name__,
    {
        "files": "FileLock",
        "jars": "resolve",
        "packaging": "python_name",
        "process": "ProcessIdentity birth handled_by",
    },
)
