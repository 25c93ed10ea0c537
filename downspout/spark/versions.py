"""Which versions of PySpark will do."""

from __future__ import annotations

import re

from downspout.errors import MissingExtraError

OLDEST = (4, 2)
"""Since then a source in Python can be limited, end at what is there, and tell the latest offset (SPARK-55304)."""


def check_pyspark(version: str | None = None) -> None:
    """Check that PySpark has what the source needs.

    Args:
        version: of PySpark; None: the installed one's.

    Raises:
        MissingExtraError: it is too old, or not installed.

    >>> check_pyspark("4.2.0")
    >>> check_pyspark("5.0.0.dev1")
    """
    version = version or _installed()
    found = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if found < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise MissingExtraError(
            f"PySpark {version} is too old: a source in Python can be limited, end at what is there, and tell its lag "
            f"only since PySpark {oldest}",
            cure=f"pip install 'pyspark>={oldest}', on the cluster too",
        )


def _installed() -> str:
    try:
        from pyspark import __version__
    except ImportError:
        raise MissingExtraError("PySpark is not installed", cure="pip install 'downspout[spark]'") from None
    return str(__version__)
