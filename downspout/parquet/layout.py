"""Where things are in a sink's directory, and what their names say.

::

    month=7/part-<writer>-<n>.parquet        what plain readers see
    _downspout/log/<n>.json                  the commit log: what is true
    _downspout/checkpoints/<n>.json          its state after n entries, so that nobody has to read them all
    _downspout/staging/month=7/part-…        files of flushes that are not in sight yet, and entries before their link
    _downspout/replaced/month=7/part-…       files that were compacted away, or are of an earlier generation
    _downspout/snapshots/<id>/month=7/part-… hard links: what a reader has asked to stay as it is

All of ours begins with an underscore: Spark, pandas and DuckDB's globs for Hive folders leave it be.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

OURS = Path("_downspout")
LOG_FOLDER = OURS / "log"
CHECKPOINT_FOLDER = OURS / "checkpoints"
STAGING_FOLDER = OURS / "staging"
REPLACED_FOLDER = OURS / "replaced"
SNAPSHOT_FOLDER = OURS / "snapshots"

_DATA = re.compile(r"part-(.+)-\d+\.parquet", re.DOTALL)
"""Names that writers give. Spark's end with a codec: ``part-00000-…-c000.snappy.parquet``."""
_TEMPORARY = re.compile(r"\.(.+)-\d+\.tmp", re.DOTALL)


def data_name(writer: str, sequence: int) -> str:
    """Return the name of a data file; with the writer's unique name in it, it is never given twice."""
    return f"part-{writer}-{sequence}.parquet"


def temporary_name(writer: str, number: int) -> str:
    """Return the name of a log entry before it is linked."""
    return f".{writer}-{number}.tmp"


def incarnation_of(name: str) -> str | None:
    """Return the writer whose file it is; None for a file that is no writer's.

    >>> incarnation_of("month=7/part-flights-3-0a1b-12.parquet"), incarnation_of(".flights-3-0a1b-5.tmp")
    ('flights-3-0a1b', 'flights-3-0a1b')
    >>> incarnation_of("part-00000-0a1b-c000.snappy.parquet") is None
    True
    """
    last = PurePosixPath(name).name
    found = _DATA.fullmatch(last) or _TEMPORARY.fullmatch(last)
    return found[1] if found else None


def is_data(path: str) -> bool:
    """Return whether readers of the directory see a file, by its path below the directory.

    As in Spark, ``_x=1`` is not hidden, because it is a Hive folder.

    >>> [is_data(path) for path in ("a.parquet", "_x=1/a.parquet", "_downspout/a.parquet", ".a.parquet", "a.csv")]
    [True, True, False, False, False]
    """
    parts = PurePosixPath(path).parts
    return path.endswith(".parquet") and not any(
        part[0] == "." or (part[0] == "_" and (place == len(parts) - 1 or "=" not in part))
        for place, part in enumerate(parts)
    )


def up_to(folder: Path, top: Path) -> list[Path]:
    """Return a folder and those above it, up to and with ``top``."""
    places = [folder]
    while places[-1] != top:
        places.append(places[-1].parent)
    return places
